// Every table of kernels that this processor has against the portable one, over random resizes. Prints the tables it compared.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "../../fastload/native/resize.h"

using namespace fastload;

namespace {

std::mt19937 dice(7);
int within(int low, int high) { return low + static_cast<int>(dice() % static_cast<unsigned>(high - low + 1)); }

class Made final : public Rows {
  public:
    Made(const std::vector<uint8_t>& pixels, int width, bool three) : at_(pixels.data()), width_(static_cast<size_t>(width)), three_(three) {}
    const uint8_t* next(uint8_t* buffer) override {
        std::memcpy(buffer, at_, 4 * width_);
        at_ += 4 * width_;
        return buffer;
    }
    int pixel() const override { return three_ ? 3 : 4; }
    const uint8_t* next_as_it_is(uint8_t* buffer) override {
        if (!three_) return next(buffer);
        for (size_t x = 0; x < width_; x++) std::memcpy(buffer + 3 * x, at_ + 4 * x, 3);
        at_ += 4 * width_;
        return buffer;
    }

  private:
    const uint8_t* at_;
    size_t width_;
    bool three_;
};

std::vector<uint8_t> resized(const std::vector<uint8_t>& pixels, const Shape& s, int channels, bool last, bool three, const Kernels& k) {
    std::vector<uint8_t> out(static_cast<size_t>(channels) * (s.right - s.left) * (s.bottom - s.top));
    Made rows(pixels, s.width, three);
    Resizer().run(rows, s, {out.data(), channels, last}, k);
    return out;
}

void one_case() {
    Shape s{within(1, 150), within(1, 120), within(1, 90), within(1, 90), 0, 0, 0, 0, within(0, 1) != 0, within(0, 1) != 0, {}, {}};
    if (within(0, 9) == 0) s.width = within(1, 1500);
    if (within(0, 9) == 0) s.out_width = within(1, 12);
    if (within(0, 4) == 0) s.out_width = s.width;
    if (within(0, 4) == 0) s.out_height = s.height;
    s.left = within(0, s.out_width - 1);
    s.right = within(s.left + 1, s.out_width);
    s.top = within(0, s.out_height - 1);
    s.bottom = within(s.top + 1, s.out_height);
    std::vector<uint8_t> pixels(4 * static_cast<size_t>(s.width) * s.height);
    const bool extreme = within(0, 3) == 0;
    for (uint8_t& v : pixels) v = static_cast<uint8_t>(extreme ? (dice() & 1) * 255 : dice());
    const int channels = within(0, 2) ? 3 : 1;
    const bool last = within(0, 1) != 0, three = within(0, 1) != 0;
    const std::vector<uint8_t> truth = resized(pixels, s, channels, last, three, portable_kernels);
    for (const char* const* name = kernel_names(); *name != nullptr; name++) {
        const Kernels* k = kernels(*name);
        if (k != nullptr && resized(pixels, s, channels, last, three, *k) != truth) {
            std::printf("%s differs: %dx%d to %dx%d\n", *name, s.width, s.height, s.out_width, s.out_height);
            std::exit(1);
        }
    }
}

}  // namespace

int main(int, char** arguments) {
    const int cases = std::atoi(arguments[1]);
    for (int i = 0; i < cases; i++) one_case();
    std::printf("%d cases:", cases);
    for (const char* const* name = kernel_names(); *name != nullptr; name++)
        if (kernels(*name) != nullptr) std::printf(" %s", *name);
    std::printf("\n");
    return 0;
}
