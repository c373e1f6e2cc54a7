// The Python side: checked arguments in, the GIL released, one image done a call.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>

#include "decode.h"
#include "jpeg_api.h"

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
    Header h;
    {
        nb::gil_scoped_release release;
        h = scan_jpeg(bytes_of(data), data.size());
    }
    if (h.refused != nullptr) return nb::str(h.refused);
    return nb::make_tuple(h.width, h.height, h.components, h.ask_pillow);
}

struct Work {
    Crop crop;
    Shape shape;
    Target target;
};

[[noreturn]] void wrong(const char* what) { throw std::invalid_argument(what); }

// Checks every number that decides where memory is read or written.
Work checked(Box box, int image_width, int image_height, std::tuple<int, int> size, Box window, bool mirrored, bool pillow13,
             Out& out, bool channels_last) {
    const auto [left, top, right, bottom] = box;
    const auto [ow, oh] = size;
    const auto [wl, wt, wr, wb] = window;
    if (left < 0 || top < 0 || right <= left || bottom <= top || right > image_width || bottom > image_height)
        wrong("the crop is empty or outside the image");
    if (ow < 1 || oh < 1 || wl < 0 || wt < 0 || wr <= wl || wb <= wt || wr > ow || wb > oh)
        wrong("the output is empty, or its window outside of it");
    const size_t channels = out.shape(channels_last ? 2 : 0), rows = out.shape(channels_last ? 0 : 1);
    const size_t columns = out.shape(channels_last ? 1 : 2);
    if ((channels != 3 && channels != 1) || rows != static_cast<size_t>(wb - wt) || columns != static_cast<size_t>(wr - wl))
        wrong("the output array has another shape than the window");
    return {{left, top, right - left, bottom - top},
            {right - left, bottom - top, ow, oh, wl, wt, wr, wb, mirrored, pillow13},
            {out.data(), static_cast<int>(channels), channels_last}};
}

// One image into `out`; the reason as text where it is Pillow's to do, else None.
nb::object render(nb::bytes data, Box box, std::tuple<int, int> size, Box window, bool mirrored, bool pillow13, Out out,
                  bool channels_last) {
    const char* refused = nullptr;
    Header h;
    {
        nb::gil_scoped_release release;
        h = scan_jpeg(bytes_of(data), data.size());
    }
    if (h.refused != nullptr) return nb::str(h.refused);
    const Work w = checked(box, h.width, h.height, size, window, mirrored, pillow13, out, channels_last);
    {
        nb::gil_scoped_release release;
        refused = render_jpeg(bytes_of(data), data.size(), h, w.crop, w.shape, w.target, *chosen, w.target.channels == 1);
    }
    return refused == nullptr ? nb::none() : nb::object(nb::str(refused));
}

void resize(Pixels pixels, Box box, std::tuple<int, int> size, Box window, bool mirrored, bool pillow13, Out out,
            bool channels_last) {
    const size_t channels = pixels.shape(2);
    if ((channels != 1 && channels != 3) || (channels == 3 && pixels.stride(2) != 1) || pixels.stride(1) != static_cast<int64_t>(channels))
        wrong("pixels must be uint8 [H, W, 3] or [H, W, 1] with contiguous rows");
    const Work w = checked(box, static_cast<int>(pixels.shape(1)), static_cast<int>(pixels.shape(0)), size, window, mirrored,
                           pillow13, out, channels_last);
    if (static_cast<size_t>(w.target.channels) > channels) wrong("a gray image can't fill three channels");
    nb::gil_scoped_release release;
    render_pixels(pixels.data(), static_cast<size_t>(pixels.stride(0)), static_cast<int>(channels), w.crop, w.shape, w.target,
                  *chosen);
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

nb::object entropy(nb::bytes data, int rows) {
    const char* refused = nullptr;
    {
        nb::gil_scoped_release release;
        refused = entropy_only(bytes_of(data), data.size(), rows);
    }
    return refused == nullptr ? nb::none() : nb::object(nb::str(refused));
}

}  // namespace

NB_MODULE(_native, m) {
    m.def("load_jpeg", [](const std::string& path) { return std::string(load_jpeg_api(path.c_str())); }, nb::arg("path"));
    m.def("probe", &probe, nb::arg("data"));
    m.def("render", &render, nb::arg("data"), nb::arg("box"), nb::arg("size"), nb::arg("window"), nb::arg("mirrored"),
          nb::arg("pillow13"), nb::arg("out"), nb::arg("channels_last") = false);
    m.def("resize", &resize, nb::arg("pixels"), nb::arg("box"), nb::arg("size"), nb::arg("window"), nb::arg("mirrored"),
          nb::arg("pillow13"), nb::arg("out"), nb::arg("channels_last") = false);
    m.def("use_kernels", &use_kernels, nb::arg("name"));
    m.def("usable_kernels", &usable_kernels);
    m.def("kernels_in_use", [] { return std::string(chosen->name); });
    m.def("entropy_only", &entropy, nb::arg("data"), nb::arg("rows"));
}
