// The vertical pass over 512 bits, 32 bytes a step, for the kernels that have AVX-512 (BW, VL).
#pragma once
#include "kernels_avx2.h"

namespace fastload {
namespace {

inline __m128i finish(__m512i low, __m512i high) {
    const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(low, _mm512_slli_epi32(high, kLowBits)), _mm512_set1_epi32(kRound));
    return _mm512_cvtusepi32_epi8(_mm512_max_epi32(_mm512_srai_epi32(sum, kPrecisionBits), _mm512_setzero_si512()));
}

void vertical(const uint8_t* const* rows, const int16_t* pairs, int n, uint8_t* dst, int bytes) {
    for (int x = 0; x < bytes; x += 32) {
        const __mmask32 live = bytes - x >= 32 ? ~__mmask32{0} : (__mmask32{1} << (bytes - x)) - 1;
        __m512i low0 = _mm512_setzero_si512(), low1 = low0, high0 = low0, high1 = low0;
        for (int i = 0; i < n; i += 2) {
            int32_t kl, kh;
            std::memcpy(&kl, pairs + 2 * i, 4);
            std::memcpy(&kh, pairs + 2 * i + 2, 4);
            const __m512i klow = _mm512_set1_epi32(kl), khigh = _mm512_set1_epi32(kh);
            const __m256i a = _mm256_maskz_loadu_epi8(live, rows[i] + x), b = _mm256_maskz_loadu_epi8(live, rows[i + 1] + x);
            const __m512i lo = _mm512_cvtepu8_epi16(_mm256_unpacklo_epi8(a, b));
            const __m512i hi = _mm512_cvtepu8_epi16(_mm256_unpackhi_epi8(a, b));
            low0 = _mm512_add_epi32(low0, _mm512_madd_epi16(lo, klow));
            high0 = _mm512_add_epi32(high0, _mm512_madd_epi16(lo, khigh));
            low1 = _mm512_add_epi32(low1, _mm512_madd_epi16(hi, klow));
            high1 = _mm512_add_epi32(high1, _mm512_madd_epi16(hi, khigh));
        }
        const __m128i p = finish(low0, high0), q = finish(low1, high1);
        const __m256i out = _mm256_set_m128i(_mm_unpackhi_epi64(p, q), _mm_unpacklo_epi64(p, q));
        _mm256_mask_storeu_epi8(dst + x, live, out);
    }
}

}  // namespace
}  // namespace fastload
