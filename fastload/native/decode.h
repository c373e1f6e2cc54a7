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

// Why nothing was written, or nullptr. `luma`: the image is wanted in Pillow's mode L.
const char* render_jpeg(const uint8_t* data, size_t size, const Header& header, const Crop& crop, const Shape& shape,
                        const Target& target, const Kernels& kernels, bool luma);

// The same from pixels that are decoded already: `channels` 3 (RGB) or 1 per pixel, `pitch` bytes from row to row.
void render_pixels(const uint8_t* pixels, size_t pitch, int channels, const Crop& crop, const Shape& shape,
                   const Target& target, const Kernels& kernels);

// Time the entropy decoder alone up to the bottom of a crop: the floor below which no decoder built on libjpeg can go.
const char* entropy_only(const uint8_t* data, size_t size, int rows);

}  // namespace fastload
