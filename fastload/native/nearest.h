// Pillow's nearest-neighbour resize of a mask: a gather, with turn, crop, padding and mirror in its two tables.
#pragma once
#include <cstddef>
#include <cstdint>

#include "layout.h"
#include "resize.h"

namespace fastload {

// Decoded pixels of one channel; `line` bytes from row to row.
struct Labels {
    const uint8_t* data;
    size_t line;
    int width, height;
};

// Writes the part of the resized crop that `shape` wants, contiguous. `crop` is in the coordinates of the turned image.
void gather(const Labels& source, const Crop& crop, const Layout& layout, const Shape& shape, uint8_t* out);

}  // namespace fastload
