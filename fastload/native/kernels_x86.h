// The x86 kernels, written once over 128 bits; each kernels_*.cpp includes this with its own compiler flags and widths.
#pragma once
#include <immintrin.h>

#include <cstring>

#include "kernels.h"

namespace fastload {
namespace {

constexpr int kRound = 1 << (kPrecisionBits - 1);

// Four int32 sums in two parts (low products, high products) to their rounded, shifted value.
inline __m128i join(__m128i low, __m128i high) {
    return _mm_srai_epi32(_mm_add_epi32(_mm_add_epi32(low, _mm_slli_epi32(high, kLowBits)), _mm_set1_epi32(kRound)),
                          kPrecisionBits);
}

inline void planes(const uint8_t* src, uint8_t* r, uint8_t* g, uint8_t* b, int width) {
    const __m128i by_channel = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    int x = 0;
    for (; x + 16 <= width; x += 16, src += 64) {
        const __m128i p0 = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(src)), by_channel);
        const __m128i p1 = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(src + 16)), by_channel);
        const __m128i p2 = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(src + 32)), by_channel);
        const __m128i p3 = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(src + 48)), by_channel);
        const __m128i rg01 = _mm_unpacklo_epi32(p0, p1), rg23 = _mm_unpacklo_epi32(p2, p3);
        const __m128i bx01 = _mm_unpackhi_epi32(p0, p1), bx23 = _mm_unpackhi_epi32(p2, p3);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(r + x), _mm_unpacklo_epi64(rg01, rg23));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(g + x), _mm_unpackhi_epi64(rg01, rg23));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(b + x), _mm_unpacklo_epi64(bx01, bx23));
    }
    for (; x < width; x++, src += 4) {
        r[x] = src[0];
        g[x] = src[1];
        b[x] = src[2];
    }
}

}  // namespace
}  // namespace fastload
