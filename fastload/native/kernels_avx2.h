// The horizontal kernel over 256 bits: four input pixels a step.
#pragma once
#include "kernels_x86.h"

namespace fastload {
namespace {

template <int Quads>  // 0: as many as each output needs
inline __m128i one(const uint8_t* p, const int16_t* wide, int used) {
    const __m256i order = _mm256_setr_epi8(0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1,  //
                                           8, -1, 12, -1, 9, -1, 13, -1, 10, -1, 14, -1, 11, -1, 15, -1);
    __m256i low = _mm256_setzero_si256(), high = low;
    for (int q = 0; q < (Quads ? Quads : used); q++) {
        const __m256i px = _mm256_shuffle_epi8(
            _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * q))), order);
        const __m256i* k = reinterpret_cast<const __m256i*>(wide + 32 * q);
        low = _mm256_add_epi32(low, _mm256_madd_epi16(px, _mm256_loadu_si256(k)));
        high = _mm256_add_epi32(high, _mm256_madd_epi16(px, _mm256_loadu_si256(k + 1)));
    }
    const __m256i sum = _mm256_add_epi32(low, _mm256_slli_epi32(high, kLowBits));
    const __m128i both = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    return _mm_srai_epi32(_mm_add_epi32(both, _mm_set1_epi32(kRound)), kPrecisionBits);
}

template <int Quads>
inline void row(const uint8_t* src, uint8_t* dst, const TapsView& taps) {
    const size_t step = static_cast<size_t>(taps.stride / 4) * 32;
    const int16_t* wide = taps.wide;
    const int* start = taps.start;
    const int* length = taps.length;
    int o = 0;
    for (; o + 4 <= taps.count; o += 4, wide += 4 * step) {
        const __m128i a = one<Quads>(src + 4 * static_cast<size_t>(start[o]), wide, (length[o] + 3) / 4);
        const __m128i b = one<Quads>(src + 4 * static_cast<size_t>(start[o + 1]), wide + step, (length[o + 1] + 3) / 4);
        const __m128i c = one<Quads>(src + 4 * static_cast<size_t>(start[o + 2]), wide + 2 * step, (length[o + 2] + 3) / 4);
        const __m128i d = one<Quads>(src + 4 * static_cast<size_t>(start[o + 3]), wide + 3 * step, (length[o + 3] + 3) / 4);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + 4 * o),
                         _mm_packus_epi16(_mm_packus_epi32(a, b), _mm_packus_epi32(c, d)));
    }
    for (; o < taps.count; o++, wide += step) {
        const __m128i v = _mm_packus_epi32(one<Quads>(src + 4 * static_cast<size_t>(start[o]), wide, (length[o] + 3) / 4),
                                           _mm_setzero_si128());
        const int pixel = _mm_cvtsi128_si32(_mm_packus_epi16(v, v));
        std::memcpy(dst + 4 * o, &pixel, 4);
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
