// One JPEG: the rows of a crop, decoded no further than they are needed, resized into a batch row.
#pragma once
#include <cstddef>
#include <cstdint>

#include "resize.h"
#include "scan.h"

namespace fastload {

struct Crop {
    int left, top, width, height;
};

// How the crop lies in the source, and what surrounds it. With neither a turn nor padding, rows stream from the decoder.
struct Layout {
    bool swap = false, flip_x = false, flip_y = false;  // source x = flip_x ? W-1-u : u, with u = swap ? y : x; y likewise
    int left = 0, top = 0, right = 0, bottom = 0;       // padding around the crop, pixels
    int mode = 0;                                       // 0 zeros, 1 border, 2 reflection (as numpy's reflect)

    bool plain() const { return !swap && !flip_x && !flip_y && left + top + right + bottom == 0; }
};

// A crop that has to be decoded whole before it can be turned or padded may have this many pixels.
constexpr size_t kMostPixels = size_t{32} << 20;

// Why nothing was written, or nullptr. `luma`: the image is wanted in Pillow's mode L.
// `crop` is in the coordinates of the turned image; `shape` describes the resize of what the crop and its padding make.
const char* render_jpeg(const uint8_t* data, size_t size, const Header& header, const Crop& crop, const Layout& layout,
                        const Shape& shape, const Target& target, const Kernels& kernels, bool luma);

// The same, not exact: decoded at 1 / `scale` of its size (2, 4 or 8, by smaller inverse transforms), then resized from there.
const char* render_scaled(const uint8_t* data, size_t size, const Header& header, const Crop& crop, int scale, const Shape& shape,
                          const Target& target, const Kernels& kernels, bool luma);

// The same from pixels that are decoded already: `channels` 3 (RGB) or 1 per pixel, `pitch` bytes from row to row.
const char* render_pixels(const uint8_t* pixels, size_t pitch, int channels, int width, int height, const Crop& crop,
                          const Layout& layout, const Shape& shape, const Target& target, const Kernels& kernels);

// Entropy decoding alone, of the first `rows` rows, for benchmarks: libjpeg's, the floor below which nothing built on it can go,
// or `ours`.
const char* entropy_only(const uint8_t* data, size_t size, int rows, bool ours);

}  // namespace fastload
