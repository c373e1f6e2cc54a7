// One JPEG: the rows of a crop, decoded no further than they are needed, resized into a batch row.
#pragma once
#include <cstddef>
#include <cstdint>

#include "layout.h"
#include "resize.h"
#include "scan.h"

namespace fastload {

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
