// The horizontal kernel over 256 bits: four input pixels of two outputs a step.
#pragma once
#include "kernels_x86.h"

namespace fastload {
namespace {

// Two outputs, one in each half: their four channels as int32.
template <int Quads>  // of four taps; 0: `used`
inline __m256i two(const uint8_t* a, const uint8_t* b, const int16_t* wide, int used) {
    const __m256i first = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1));
    const __m256i second = _mm256_broadcastsi128_si256(_mm_setr_epi8(8, -1, 12, -1, 9, -1, 13, -1, 10, -1, 14, -1, 11, -1, 15, -1));
    __m256i low = _mm256_setzero_si256(), high = low;
    for (int q = 0; q < (Quads ? Quads : used); q++) {
        const __m256i px = _mm256_inserti128_si256(
            _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a + 16 * q))),
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(b + 16 * q)), 1);
        const __m256i front = _mm256_shuffle_epi8(px, first), back = _mm256_shuffle_epi8(px, second);
        const __m256i* k = reinterpret_cast<const __m256i*>(wide + 64 * q);
        low = _mm256_add_epi32(low, _mm256_add_epi32(_mm256_madd_epi16(front, _mm256_loadu_si256(k)),
                                                     _mm256_madd_epi16(back, _mm256_loadu_si256(k + 1))));
        high = _mm256_add_epi32(high, _mm256_add_epi32(_mm256_madd_epi16(front, _mm256_loadu_si256(k + 2)),
                                                       _mm256_madd_epi16(back, _mm256_loadu_si256(k + 3))));
    }
    const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(low, _mm256_slli_epi32(high, kLowBits)), _mm256_set1_epi32(kRound));
    return _mm256_srai_epi32(sum, kPrecisionBits);
}

// Four outputs (a and b, c and d) as 16 bytes.
inline __m128i four(__m256i ab, __m256i cd) {
    const __m256i v = _mm256_packus_epi32(ab, cd);
    const __m256i bytes = _mm256_packus_epi16(v, v);
    return _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
}

template <int Quads>
inline void row(const uint8_t* src, uint8_t* dst, const TapsView& taps) {
    const size_t step = static_cast<size_t>(taps.stride / 4) * 64;
    const int16_t* wide = taps.wide;
    const auto pair = [&](int o, int p) {
        const int most = taps.length[o] > taps.length[p] ? taps.length[o] : taps.length[p];
        return two<Quads>(src + 4 * static_cast<size_t>(taps.start[o]), src + 4 * static_cast<size_t>(taps.start[p]), wide,
                          (most + 3) / 4);
    };
    int o = 0;
    for (; o + 4 <= taps.count; o += 4) {
        const __m256i ab = pair(o, o + 1);
        wide += step;
        const __m256i cd = pair(o + 2, o + 3);
        wide += step;
        _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + 4 * o), four(ab, cd));
    }
    for (; o < taps.count; o += 2, wide += step) {
        const bool both = o + 1 < taps.count;
        const __m256i ab = pair(o, both ? o + 1 : o);
        const int64_t pixels = _mm_cvtsi128_si64(four(ab, ab));
        std::memcpy(dst + 4 * o, &pixels, both ? 8 : 4);
    }
}

inline void horizontal256(const uint8_t* src, uint8_t* dst, const TapsView& taps) {
    switch ((taps.most + 3) / 4) {
        case 1: return row<1>(src, dst, taps);
        case 2: return row<2>(src, dst, taps);
        case 3: return row<3>(src, dst, taps);
        default: return row<0>(src, dst, taps);
    }
}

}  // namespace
}  // namespace fastload
