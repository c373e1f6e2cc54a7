// Pillow's bilinear coefficients (Resample.c: precompute_coeffs with the triangle filter, normalize_coeffs_8bpc).
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastload {

constexpr int kPrecisionBits = 32 - 8 - 2;  // of Pillow's 8 bit coefficients
constexpr int kLowBits = 15;                // a coefficient is split into 15 low bits and the rest, for 16-bit multiplies

// What the kernels see: plain pointers, so that no inline function of the standard library is compiled for one instruction set
// and then used by code for another.
struct TapsView {
    int count, stride, most;                // outputs; coefficients kept per output; longest run of any output
    const int *start, *length;
    const int32_t* k;
    const int16_t* wide;
};

// For each output position in a range: where its inputs start, how many, and their coefficients (sum about 2^22).
struct Taps {
    int count = 0, stride = 0;              // outputs; coefficients kept per output, a multiple of 8, zero filled
    int most = 0;                           // longest run of any output
    std::vector<int> start, length;
    std::vector<int32_t> k;
    std::vector<int16_t> pairs;             // [count][stride / 2][low a, low b, high a, high b], for the vertical kernels
    // [count / 2, rounded up][stride / 4][low of taps 0 and 1, of 2 and 3, high of 0 and 1, of 2 and 3][output of the two][8]: each
    // pair of taps repeated for 4 channels, so that two outputs lie side by side in 256 bits.
    std::vector<int16_t> wide;

    // Outputs [first, first + count) of a resize of `extent` positions from `from` on, of the `in` that there are, to `out`;
    // `mirrored`: the input is read backwards, and `from` counts from its end.
    void fill(int in, double from, double extent, int out, int first, int count, bool mirrored);
    // Outputs near the end begin earlier, with coefficients of 0, so that none looks past `in` by reading as far as the longest,
    // rounded up to four taps; unless that is more than there are.
    void keep_within(int in);
    void pair_up();                         // fill `pairs`
    void widen();                           // fill `wide`, for the horizontal kernels, from `pairs`
    TapsView view() const;
    const int16_t* pair(int output) const { return pairs.data() + static_cast<size_t>(output) * stride * 2; }
};

}  // namespace fastload
