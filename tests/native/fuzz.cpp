// Any bytes through the native path under the sanitizers. With clang: a libFuzzer target. With any compiler and -DREPLAY: a
// program that runs files. The first 16 bytes choose crop, size, window, turn and padding; the rest is the JPEG.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <thread>
#include <vector>

#include "../../fastload/native/decode.h"
#include "../../fastload/native/jpeg_api.h"
#include "../../fastload/native/nearest.h"

using namespace fastload;

namespace {
constexpr size_t kOptions = 16;
const char* library() {
    const char* path = std::getenv("FUZZ_JPEG");
    return path != nullptr ? path : "libjpeg.so.62";
}
int within(uint8_t byte, int n) { return n <= 1 ? 0 : static_cast<int>(byte) * n / 256; }

int one_input(const uint8_t* data, size_t size) {
    const uint8_t* o = data;
    // A copy of exactly the file's size: one byte read too far is seen.
    const std::vector<uint8_t> file(data + kOptions, data + size);
    const Header h = scan_jpeg(file.data(), file.size());
    if (h.refused != nullptr || static_cast<size_t>(h.width) * static_cast<size_t>(h.height) > size_t{1} << 20) return 0;
    Layout layout;
    layout.swap = o[0] & 1;
    layout.flip_x = o[0] & 2;
    layout.flip_y = o[0] & 4;
    const int width = layout.swap ? h.height : h.width, height = layout.swap ? h.width : h.height;
    Crop crop{within(o[1], width), within(o[2], height), 1, 1};
    crop.width += within(o[3], width - crop.left);
    crop.height += within(o[4], height - crop.top);
    if (o[0] & 8) {
        layout.left = o[5] & 15;
        layout.top = o[5] >> 4;
        layout.right = o[6] & 31;
        layout.bottom = o[6] >> 3;
        layout.mode = o[7] % 3;
    }
    Shape shape{crop.width + layout.left + layout.right, crop.height + layout.top + layout.bottom, 1 + o[8], 1 + o[9], 0, 0, 0, 0, (o[0] & 16) != 0, (o[0] & 32) != 0, {}, {}};
    if (o[0] & 64) {
        shape.out_width = shape.width < 400 ? shape.width : 400;
        shape.out_height = shape.height < 400 ? shape.height : 400;
    }
    shape.left = within(o[10], shape.out_width);
    shape.top = within(o[11], shape.out_height);
    shape.right = shape.left + 1 + within(o[12], shape.out_width - shape.left);
    shape.bottom = shape.top + 1 + within(o[13], shape.out_height - shape.top);
    const int channels = o[14] & 1 ? 3 : 1;
    std::vector<uint8_t> out(static_cast<size_t>(channels) * static_cast<size_t>(shape.right - shape.left) * static_cast<size_t>(shape.bottom - shape.top));
    const std::vector<uint8_t> labels(static_cast<size_t>(h.width) * static_cast<size_t>(h.height), 1);
    gather({labels.data(), static_cast<size_t>(h.width), h.width, h.height}, crop, layout, shape, out.data());
    const std::vector<uint8_t> pixels(3 * labels.size(), o[15]);
    for (const char* const* name = kernel_names(); *name != nullptr; name++)
        if (const Kernels* k = kernels(*name)) {
            const Target whole{out.data(), channels, (o[14] & 2) != 0};
            const int of = channels == 1 && (o[14] & 4) ? 1 : 3;
            render_pixels(pixels.data() + (3 - of) * labels.size(), static_cast<size_t>(of * h.width), of, h.width, h.height, crop, layout, shape, whole, *k);
            for (const int scale : {1, 1 << (o[15] & 3)}) {
                const Target target{out.data(), channels, (o[14] & 2) != 0};
                if (scale == 1)
                    render_jpeg(file.data(), file.size(), h, crop, layout, shape, target, *k, channels == 1);
                else if (layout.plain())
                    render_scaled(file.data(), file.size(), h, crop, scale, shape, target, *k, channels == 1);
            }
        }
    return 0;
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const bool connected = *load_jpeg_api(library()) == '\0';
    if (!connected) std::abort();
    if (size < kOptions) return 0;
    if (data[15] & 4) return one_input(data, size);
    // A thread of its own, so that its buffers are no larger than this image needs.
    std::thread(one_input, data, size).join();
    return 0;
}

#ifdef REPLAY
int main(int count, char** names) {
    for (int i = 1; i < count; i++) {
        std::ifstream file(names[i], std::ios::binary);
        const std::vector<uint8_t> data{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
        LLVMFuzzerTestOneInput(data.data(), data.size());
    }
    std::printf("%d files\n", count - 1);
    return 0;
}
#endif
