// The Python side: checked arguments in, the GIL released, one image done a call.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>

#include "augment.h"
#include "decode.h"
#include "files.h"
#include "jpeg_api.h"
#include "nearest.h"

namespace nb = nanobind;
using namespace fastload;

namespace {

using Out = nb::ndarray<uint8_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using Pixels = nb::ndarray<const uint8_t, nb::ndim<3>, nb::device::cpu>;
using Box = std::tuple<int, int, int, int>;

const Kernels* chosen = best_kernels();

const uint8_t* bytes_of(const nb::bytes& data) { return reinterpret_cast<const uint8_t*>(data.c_str()); }

// (width, height, components, Pillow has to read the header first) or the reason why the file is Pillow's.
nb::object probe(nb::bytes data) {
    const Header h = scan_jpeg(bytes_of(data), data.size());  // under a microsecond: not worth giving the GIL away
    if (h.refused != nullptr) return nb::str(h.refused);
    return nb::make_tuple(h.width, h.height, h.components, h.ask_pillow);
}

// For each path: its bytes, and the width and height of what Pillow would see as an ordinary JPEG, else 0 and 0; None where the
// file is not an ordinary one, which Python then opens, and says what is wrong. The GIL is given away twice for all of them.
std::vector<nb::object> read_several(const std::vector<nb::bytes>& paths) {
    std::vector<PlainFile> files;
    files.reserve(paths.size());
    {
        nb::gil_scoped_release release;
        for (const nb::bytes& path : paths) files.emplace_back(path.size() == std::strlen(path.c_str()) ? path.c_str() : "");
    }
    std::vector<nb::bytes> data;
    for (const PlainFile& file : files) data.emplace_back(nullptr, file.size);
    std::vector<Header> headers(paths.size());
    std::vector<char> whole(paths.size());
    {
        nb::gil_scoped_release release;
        for (size_t i = 0; i < files.size(); i++) {
            whole[i] = files[i].read(reinterpret_cast<uint8_t*>(const_cast<char*>(data[i].c_str())));
            if (whole[i]) headers[i] = scan_jpeg(bytes_of(data[i]), data[i].size());
        }
        files.clear();
    }
    std::vector<nb::object> answers;
    for (size_t i = 0; i < paths.size(); i++) {
        const Header& h = headers[i];
        const bool plain = h.refused == nullptr && !h.ask_pillow;
        answers.push_back(whole[i] ? nb::object(nb::make_tuple(data[i], plain ? h.width : 0, plain ? h.height : 0)) : nb::none());
    }
    return answers;
}

struct Work {
    Crop crop;
    Layout layout;
    Shape shape;
    Target target;
};

[[noreturn]] void wrong(const char* what) { throw std::invalid_argument(what); }

constexpr int kMostPad = 1 << 20;

// Checks every number that decides where memory is read or written. `turn`: bits 1 swap, 2 flip x, 4 flip y.
Work checked(Box box, int image_width, int image_height, std::tuple<int, int> size, Box window, bool mirrored, bool pillow13,
             int turn, Box pad, int pad_mode, const Target& target, size_t rows, size_t columns) {
    const auto [left, top, right, bottom] = box;
    const auto [ow, oh] = size;
    const auto [wl, wt, wr, wb] = window;
    const auto [pl, pt, pr, pb] = pad;
    if (turn < 0 || turn > 7 || pad_mode < 0 || pad_mode > 2) wrong("there is no such turn or pad mode");
    if (pl < 0 || pt < 0 || pr < 0 || pb < 0 || pl > kMostPad || pt > kMostPad || pr > kMostPad || pb > kMostPad)
        wrong("the padding is negative or absurd");
    const bool swap = turn & 1;
    if (left < 0 || top < 0 || right <= left || bottom <= top || right > (swap ? image_height : image_width) ||
        bottom > (swap ? image_width : image_height))
        wrong("the crop is empty or outside the image");
    if (ow < 1 || oh < 1 || wl < 0 || wt < 0 || wr <= wl || wb <= wt || wr > ow || wb > oh)
        wrong("the output is empty, or its window outside of it");
    if ((target.channels != 3 && target.channels != 1) || rows != static_cast<size_t>(wb - wt) || columns != static_cast<size_t>(wr - wl))
        wrong("the output array has another shape than the window");
    return {{left, top, right - left, bottom - top},
            {swap, (turn & 2) != 0, (turn & 4) != 0, pl, pt, pr, pb, pad_mode},
            {right - left + pl + pr, bottom - top + pt + pb, ow, oh, wl, wt, wr, wb, mirrored, pillow13, {}, {}},
            target};
}

Work checked(Box box, int image_width, int image_height, std::tuple<int, int> size, Box window, bool mirrored, bool pillow13,
             int turn, Box pad, int pad_mode, Out& out, bool channels_last) {
    const Target target{out.data(), static_cast<int>(out.shape(channels_last ? 2 : 0)), channels_last};
    return checked(box, image_width, image_height, size, window, mirrored, pillow13, turn, pad, pad_mode, target,
                   out.shape(channels_last ? 0 : 1), out.shape(channels_last ? 1 : 2));
}

nb::object reason(const char* refused) { return refused == nullptr ? nb::none() : nb::object(nb::str(refused)); }

// One JPEG: its bytes and what is to be done with it. `refused` is set where it is Pillow's.
struct Encoded {
    const uint8_t* data;
    size_t size;
    Header header;
    Work work;
    int scale;
    const char* refused;

    void run(const Kernels& k) {
        if (refused != nullptr) return;
        const bool luma = work.target.channels == 1;
        if (scale == 1 || !work.layout.plain())
            refused = render_jpeg(data, size, header, work.crop, work.layout, work.shape, work.target, k, luma);
        else
            refused = render_scaled(data, size, header, work.crop, scale, work.shape, work.target, k, luma);
    }
};

Encoded encoded(const nb::bytes& data, Box box, std::tuple<int, int> size, Box window, bool mirrored, bool pillow13, Out& out,
                int turn, Box pad, int pad_mode, bool channels_last, int scale) {
    if (scale != 1 && scale != 2 && scale != 4 && scale != 8) wrong("the scale is none of 1, 2, 4 and 8");
    Encoded one{bytes_of(data), data.size(), {}, {}, scale, "Pillow's libjpeg is not connected"};
    if (jpeg_api().create == nullptr) return one;
    one.header = scan_jpeg(one.data, one.size);
    one.refused = one.header.refused;
    if (one.refused != nullptr) return one;
    one.work = checked(box, one.header.width, one.header.height, size, window, mirrored, pillow13, turn, pad, pad_mode, out,
                       channels_last);
    return one;
}

// One image into `out`; the reason as text where it is Pillow's to do, else None.
nb::object render(nb::bytes data, Box box, std::tuple<int, int> size, Box window, bool mirrored, bool pillow13, Out out,
                  int turn, Box pad, int pad_mode, bool channels_last, int scale) {
    Encoded one = encoded(data, box, size, window, mirrored, pillow13, out, turn, pad, pad_mode, channels_last, scale);
    const Kernels& k = *chosen;  // it changes under the GIL alone
    {
        nb::gil_scoped_release release;
        one.run(k);
    }
    return reason(one.refused);
}

// The arguments of `render`, all of them, for several images: the GIL is given away once. One answer for each.
using RenderArguments = std::tuple<nb::bytes, Box, std::tuple<int, int>, Box, bool, bool, Out, int, Box, int, bool, int>;

std::vector<nb::object> render_several(std::vector<RenderArguments> given) {
    std::vector<Encoded> images;
    for (auto& [data, box, size, window, mirrored, pillow13, out, turn, pad, pad_mode, channels_last, scale] : given)
        images.push_back(encoded(data, box, size, window, mirrored, pillow13, out, turn, pad, pad_mode, channels_last, scale));
    const Kernels& k = *chosen;
    {
        nb::gil_scoped_release release;
        for (Encoded& one : images) one.run(k);
    }
    std::vector<nb::object> answers;
    for (const Encoded& one : images) answers.push_back(reason(one.refused));
    return answers;
}

// One image that is decoded already: where it lies and what is to be done with it.
struct Decoded {
    const uint8_t* pixels;
    size_t pitch;
    int channels, width, height;
    Work work;
    bool nearest;

    const char* run(const Kernels& k) const {
        if (nearest) {
            gather({pixels, pitch, width, height}, work.crop, work.layout, work.shape, work.target.data);
            return nullptr;
        }
        return render_pixels(pixels, pitch, channels, width, height, work.crop, work.layout, work.shape, work.target, k);
    }
};

Decoded decoded(const uint8_t* pixels, size_t pitch, int channels, int width, int height, const Work& w, bool nearest) {
    if (w.target.channels > channels) wrong("a gray image can't fill three channels");
    if (nearest && channels != 1) wrong("the nearest pixel is taken of images with one channel alone");
    return {pixels, pitch, channels, width, height, w, nearest};
}

Decoded decoded(const Pixels& pixels, Box box, std::tuple<int, int> size, Box window, bool mirrored, bool pillow13, Out& out,
                int turn, Box pad, int pad_mode, bool channels_last, bool nearest) {
    const size_t channels = pixels.shape(2);
    if ((channels != 1 && channels != 3) || (channels == 3 && pixels.stride(2) != 1) ||
        pixels.stride(1) != static_cast<int64_t>(channels) || pixels.stride(0) < 0)
        wrong("pixels must be uint8 [H, W, 3] or [H, W, 1] with contiguous rows");
    const int width = static_cast<int>(pixels.shape(1)), height = static_cast<int>(pixels.shape(0));
    const Work w = checked(box, width, height, size, window, mirrored, pillow13, turn, pad, pad_mode, out, channels_last);
    return decoded(pixels.data(), static_cast<size_t>(pixels.stride(0)), static_cast<int>(channels), width, height, w, nearest);
}

nb::object resize(Pixels pixels, Box box, std::tuple<int, int> size, Box window, bool mirrored, bool pillow13, Out out,
                  int turn, Box pad, int pad_mode, bool channels_last, bool nearest) {
    const Decoded one =
        decoded(pixels, box, size, window, mirrored, pillow13, out, turn, pad, pad_mode, channels_last, nearest);
    const char* refused = nullptr;
    const Kernels& k = *chosen;
    {
        nb::gil_scoped_release release;
        refused = one.run(k);
    }
    return reason(refused);
}

using Memories = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Rows4 = nb::ndarray<uint8_t, nb::ndim<4>, nb::c_contig, nb::device::cpu>;
// row, memory, offset, width, height, channels, box, size, window, mirrored, turn, pad, pad_mode, nearest
using Stored = std::tuple<size_t, size_t, size_t, int, int, int, Box, std::tuple<int, int>, Box, bool, int, Box, int, bool>;

// Images [H, W, channels] that lie one behind the other in a few pieces of memory, each into its row of `out`: the GIL is given
// away once. One answer for each.
std::vector<nb::object> resize_several(const std::vector<Memories>& memories, Rows4 out, const std::vector<Stored>& given, bool pillow13,
                                       bool channels_last) {
    std::vector<Decoded> images;
    images.reserve(given.size());
    const int channels_out = static_cast<int>(out.shape(channels_last ? 3 : 1));
    const size_t rows = out.shape(channels_last ? 1 : 2), columns = out.shape(channels_last ? 2 : 3), row_bytes = channels_out * rows * columns;
    for (const auto& [row, number, offset, width, height, channels, box, size, window, mirrored, turn, pad, pad_mode, nearest] : given) {
        if (row >= out.shape(0) || number >= memories.size()) wrong("there is no such row or memory");
        if (width < 1 || height < 1 || (channels != 1 && channels != 3)) wrong("an image is empty, or has other than 1 or 3 channels");
        const size_t bytes = static_cast<size_t>(width) * static_cast<size_t>(height) * static_cast<size_t>(channels);
        if (offset > memories[number].size() || bytes > memories[number].size() - offset) wrong("an image ends outside its memory");
        const Target target{out.data() + row * row_bytes, channels_out, channels_last};
        const Work w = checked(box, width, height, size, window, mirrored, pillow13, turn, pad, pad_mode, target, rows, columns);
        images.push_back(decoded(memories[number].data() + offset, static_cast<size_t>(width) * channels, channels, width, height, w, nearest));
    }
    std::vector<const char*> refused;
    refused.reserve(images.size());
    const Kernels& k = *chosen;
    {
        nb::gil_scoped_release release;
        for (const Decoded& one : images) refused.push_back(one.run(k));
    }
    std::vector<nb::object> answers;
    for (const char* why : refused) answers.push_back(reason(why));
    return answers;
}

void use_kernels(const std::string& name) {
    const Kernels* found = kernels(name.c_str());
    if (found == nullptr) wrong("this processor or build has no kernels of that name");
    chosen = found;
}

std::vector<std::string> usable_kernels() {
    std::vector<std::string> names;
    for (const char* const* n = kernel_names(); *n != nullptr; n++)
        if (kernels(*n) != nullptr) names.emplace_back(*n);
    return names;
}

nb::object entropy(nb::bytes data, int rows, bool ours) {
    if (rows < 0) wrong("the number of rows is negative");
    const char* refused = nullptr;
    {
        nb::gil_scoped_release release;
        refused = entropy_only(bytes_of(data), data.size(), rows, ours);
    }
    return reason(refused);
}

using Images = nb::ndarray<nb::ndim<4>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<float, nb::ndim<4>, nb::c_contig, nb::device::cpu>;
using Maps = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using PerChannel = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using StageArguments = std::tuple<Box, std::tuple<int, int>, std::tuple<int, int>, int, bool, Maps>;

constexpr int kMostSide = 1 << 15;  // of an image: places in a plane are counted in 32 bits

bool side(int n) { return n >= 1 && n <= kMostSide; }

// The stages one after another: what comes in fits, what goes out is known.
std::vector<Stage> checked_stages(const std::vector<StageArguments>& given, size_t images, int& width, int& height) {
    std::vector<Stage> stages;
    for (const auto& [box, pool, size, pad, align_corners, maps] : given) {
        const auto [left, top, right, bottom] = box;
        const auto [pw, ph] = pool;
        const auto [ow, oh] = size;
        if (left < 0 || top < 0 || right <= left || bottom <= top || right > width || bottom > height)
            wrong("a stage's crop is empty or outside its input");
        if (!stages.empty() && (right - left != width || bottom - top != height)) wrong("only the first stage may crop");
        if ((pw != 0 || ph != 0) && (!side(pw) || !side(ph) || pw > right - left || ph > bottom - top))
            wrong("a stage is averaged down to nothing, or to more than there is");
        if (!side(ow) || !side(oh) || pad < 0 || pad > 2) wrong("a stage has no output, or an unknown pad mode");
        if (maps.shape(0) != images || maps.shape(1) != 9) wrong("a stage needs nine numbers for each image");
        stages.push_back({left, top, right - left, bottom - top, pw, ph, ow, oh, static_cast<Pad>(pad), align_corners, maps.data()});
        width = ow;
        height = oh;
    }
    return stages;
}

void check_maps(const std::vector<Stage>& stages, size_t images) {
    for (const Stage& s : stages)
        for (size_t i = 0; i < images; i++) {
            const double* m = s.maps + 9 * i;
            for (int k = 0; k < 9; k++)
                if (!(m[k] > -1e9 && m[k] < 1e9)) wrong("a map holds a number that is not finite, or absurd");
            for (const int x : {0, s.out_width - 1})
                for (const int y : {0, s.out_height - 1})
                    if (!(m[6] * x + m[7] * y + m[8] > 1e-6)) wrong("a map sends a place of the output to infinity");
        }
}

// uint8 or float images [N, C, H, W] through the stages into `out`, float [N, C, H, W].
void augment_batch(Images images, Floats out, const std::vector<StageArguments>& given, std::optional<Maps> light,
                   std::optional<PerChannel> mean, std::optional<PerChannel> deviation, float divisor, int threads) {
    const bool bytes = images.dtype() == nb::dtype<uint8_t>();
    if (!bytes && images.dtype() != nb::dtype<float>()) wrong("images must be uint8 or float32");
    const size_t n = images.shape(0), channels = images.shape(1);
    if (images.shape(2) > kMostSide || images.shape(3) > kMostSide || channels > 64 || n > (1u << 24)) wrong("the batch is too large");
    int height = static_cast<int>(images.shape(2)), width = static_cast<int>(images.shape(3));
    if (height < 1 || width < 1 || channels < 1) wrong("the images are empty");
    const Batch batch = {bytes ? static_cast<const uint8_t*>(images.data()) : nullptr,
                         bytes ? nullptr : static_cast<const float*>(images.data()),
                         static_cast<int>(n), static_cast<int>(channels), height, width, divisor, out.data()};
    const std::vector<Stage> stages = checked_stages(given, n, width, height);
    check_maps(stages, n);
    if (out.shape(0) != n || out.shape(1) != channels || out.shape(2) != static_cast<size_t>(height) ||
        out.shape(3) != static_cast<size_t>(width))
        wrong("the output array has another shape than the last stage");
    if (light && (light->shape(0) != n || light->shape(1) != 2)) wrong("light needs two numbers for each image");
    if (mean.has_value() != deviation.has_value() ||
        (mean && (mean->shape(0) != channels || deviation->shape(0) != channels)))
        wrong("mean and deviation need a number for each channel");
    if (!(divisor > 0.0f) || threads < 1 || threads > 1024) wrong("the divisor or the number of threads is out of range");
    for (size_t i = 0; light && i < 2 * n; i++)
        if (!(light->data()[i] > -1e30 && light->data()[i] < 1e30)) wrong("light holds a number that is not finite");
    const Tone tone = {light ? light->data() : nullptr, mean ? mean->data() : nullptr, mean ? deviation->data() : nullptr};
    const RowKernels& rows = row_kernels(chosen->name);  // chosen changes under the GIL alone
    nb::gil_scoped_release release;
    augment(batch, stages, tone, threads, rows);
}

}  // namespace

NB_MODULE(_native, m) {
    m.def("load_jpeg", [](const std::string& path) { return std::string(load_jpeg_api(path.c_str())); }, nb::arg("path"));
    m.def("probe", &probe, nb::arg("data"));
    m.def("render", &render, nb::arg("data"), nb::arg("box"), nb::arg("size"), nb::arg("window"), nb::arg("mirrored"),
          nb::arg("pillow13"), nb::arg("out"), nb::arg("turn") = 0, nb::arg("pad") = Box{0, 0, 0, 0}, nb::arg("pad_mode") = 0,
          nb::arg("channels_last") = false, nb::arg("scale") = 1);
    m.def("read_several", &read_several, nb::arg("paths"));
    m.def("render_several", &render_several, nb::arg("images"));
    m.def("resize", &resize, nb::arg("pixels"), nb::arg("box"), nb::arg("size"), nb::arg("window"), nb::arg("mirrored"),
          nb::arg("pillow13"), nb::arg("out"), nb::arg("turn") = 0, nb::arg("pad") = Box{0, 0, 0, 0}, nb::arg("pad_mode") = 0,
          nb::arg("channels_last") = false, nb::arg("nearest") = false);
    m.def("resize_several", &resize_several, nb::arg("memories"), nb::arg("out"), nb::arg("images"), nb::arg("pillow13"),
          nb::arg("channels_last") = false);
    m.def("augment", &augment_batch, nb::arg("images"), nb::arg("out"), nb::arg("stages"), nb::arg("light").none(),
          nb::arg("mean").none(), nb::arg("deviation").none(), nb::arg("divisor"), nb::arg("threads"));
    m.def("use_kernels", &use_kernels, nb::arg("name"));
    m.def("usable_kernels", &usable_kernels);
    m.def("kernels_in_use", [] { return std::string(chosen->name); });
    m.def("entropy_only", &entropy, nb::arg("data"), nb::arg("rows"), nb::arg("ours") = false);
}
