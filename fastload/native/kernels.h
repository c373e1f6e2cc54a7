// The inner loops of a resize, one table of them per instruction set; all tables give equal results.
#pragma once
#include <cstdint>

#include "taps.h"

namespace fastload {

struct Packed;

// Rows are RGBX, 4 bytes a pixel. Readable slack after each row: 32 bytes (they are multiplied by zero coefficients).
struct Kernels {
    const char* name;
    // dst[o] = horizontal taps of src for every output of `taps`; dst is RGBX.
    void (*horizontal)(const uint8_t* src, uint8_t* dst, const TapsView& taps);
    // dst = weighted sum of `n` rows (n even; the last may repeat with weight 0), `bytes` a multiple of 16; pairs as in Taps.
    void (*vertical)(const uint8_t* const* rows, const int16_t* pairs, int n, uint8_t* dst, int bytes);
    // Split RGBX into three planes of `width` bytes.
    void (*planes)(const uint8_t* src, uint8_t* r, uint8_t* g, uint8_t* b, int width);
    // RGB to RGBX; reads no byte behind the last pixel.
    void (*spread)(const uint8_t* src, uint8_t* dst, int width);
    const Packed* packed;  // for rows of RGB; nullptr where this instruction set gains nothing by them
};

const Kernels* kernels(const char* name);  // by name; nullptr if this processor or build has none of that name
const Kernels* best_kernels();
const char* const* kernel_names();         // every name of this build, best first, ended by nullptr

extern const Kernels portable_kernels;
#if defined(__x86_64__)
extern const Kernels sse41_kernels, avx2_kernels, avx512_kernels, vbmi_kernels;
#elif defined(__aarch64__)
extern const Kernels neon_kernels;
#endif

}  // namespace fastload
