// Kernels for x86-64 with AVX2; kernels_avx512.cpp takes the horizontal one from here.
#include "kernels_avx2.h"

namespace fastload {
namespace {

inline __m256i join(__m256i low, __m256i high) {
    return _mm256_srai_epi32(
        _mm256_add_epi32(_mm256_add_epi32(low, _mm256_slli_epi32(high, kLowBits)), _mm256_set1_epi32(kRound)), kPrecisionBits);
}

void vertical(const uint8_t* const* rows, const int16_t* pairs, int n, uint8_t* dst, int bytes) {
    for (int x = 0; x < bytes; x += 16) {
        __m256i low0 = _mm256_setzero_si256(), low1 = low0, high0 = low0, high1 = low0;
        for (int i = 0; i < n; i += 2) {
            int32_t kl, kh;
            std::memcpy(&kl, pairs + 2 * i, 4);
            std::memcpy(&kh, pairs + 2 * i + 2, 4);
            const __m256i klow = _mm256_set1_epi32(kl), khigh = _mm256_set1_epi32(kh);
            const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[i] + x));
            const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[i + 1] + x));
            const __m256i lo = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(a, b));
            const __m256i hi = _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(a, b));
            low0 = _mm256_add_epi32(low0, _mm256_madd_epi16(lo, klow));
            high0 = _mm256_add_epi32(high0, _mm256_madd_epi16(lo, khigh));
            low1 = _mm256_add_epi32(low1, _mm256_madd_epi16(hi, klow));
            high1 = _mm256_add_epi32(high1, _mm256_madd_epi16(hi, khigh));
        }
        const __m256i v = _mm256_permute4x64_epi64(_mm256_packus_epi32(join(low0, high0), join(low1, high1)), 0xd8);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + x),
                         _mm_packus_epi16(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1)));
    }
}

}  // namespace

const Kernels avx2_kernels = {"avx2", horizontal256, vertical, planes, spread, nullptr};

}  // namespace fastload
