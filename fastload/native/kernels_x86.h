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

inline void spread(const uint8_t* src, uint8_t* dst, int width) {
    const __m128i order = _mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1);
    int x = 0;
    for (; x + 16 <= width; x += 16, src += 48, dst += 64) {  // 48 bytes by three loads
        const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(src));
        const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + 16));
        const __m128i c = _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + 32));
        __m128i* out = reinterpret_cast<__m128i*>(dst);
        _mm_storeu_si128(out, _mm_shuffle_epi8(a, order));
        _mm_storeu_si128(out + 1, _mm_shuffle_epi8(_mm_alignr_epi8(b, a, 12), order));
        _mm_storeu_si128(out + 2, _mm_shuffle_epi8(_mm_alignr_epi8(c, b, 8), order));
        _mm_storeu_si128(out + 3, _mm_shuffle_epi8(_mm_srli_si128(c, 4), order));
    }
    for (; x < width; x++, src += 3, dst += 4) {
        dst[0] = src[0];
        dst[1] = src[1];
        dst[2] = src[2];
        dst[3] = 0;
    }
}

}  // namespace
}  // namespace fastload
