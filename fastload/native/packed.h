// Kernels that keep three bytes a pixel all the way: fewer bytes to weigh, and no pass to spread them.
#pragma once
#include <cstddef>
#include <cstdint>

#include "taps.h"

namespace fastload {

// A row's outputs are taken as bytes, 16 at a time (a group). Coefficients are split into three signed bytes (k = a + 256 b + 65536 c),
// four taps to a 32-bit lane. Memory behind these pointers belongs to the caller, is aligned to 64 bytes and has `kBehind` spare.
struct Packed {
    static constexpr size_t kBehind = 256;

    // Bytes that `prepare` fills.
    size_t (*table_bytes)(int outputs, int stride);
    // Coefficients and byte orders for rows of `pixel` (3 or 4) bytes; false where an output looks too far for this instruction set.
    bool (*prepare)(const TapsView& taps, int pixel, uint8_t* table);
    // For each output, for each four of its taps: the lanes to weigh four rows by.
    void (*weights)(const TapsView& taps, int32_t (*weights)[3]);
    // dst = horizontal taps of src, RGB. Reads up to 192 bytes behind the row, writes up to 64.
    void (*horizontal)(const uint8_t* src, uint8_t* dst, int pixel, const uint8_t* table);
    // dst = the sum of 4 * `quads` rows, each quad with its coefficients at weights[quad]; in steps of 64 bytes.
    void (*vertical)(const uint8_t* const* rows, const int32_t (*weights)[3], int quads, uint8_t* dst, int bytes);
    // Split RGB into three planes of `width` bytes; reads up to 192 bytes behind the row.
    void (*planes)(const uint8_t* src, uint8_t* r, uint8_t* g, uint8_t* b, int width);
};

}  // namespace fastload
