// Kernels for x86-64 with SSE4.1.
#include "kernels_x86.h"

namespace fastload {
namespace {

void horizontal(const uint8_t* src, uint8_t* dst, const TapsView& taps) {
    const __m128i first = _mm_setr_epi8(0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1);
    const __m128i second = _mm_setr_epi8(8, -1, 12, -1, 9, -1, 13, -1, 10, -1, 14, -1, 11, -1, 15, -1);
    const int quads = taps.stride / 4;
    for (int o = 0; o < taps.count; o++) {
        const int16_t* wide = taps.wide + static_cast<size_t>(o / 2) * static_cast<size_t>(quads) * 64 + 8 * (o & 1);
        const uint8_t* p = src + static_cast<size_t>(taps.start[o]) * 4;
        const int used = (taps.length[o] + 3) / 4;
        __m128i low = _mm_setzero_si128(), high = low;
        for (int q = 0; q < used; q++) {
            const __m128i px = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * q));
            const __m128i a = _mm_shuffle_epi8(px, first), b = _mm_shuffle_epi8(px, second);
            const __m128i* k = reinterpret_cast<const __m128i*>(wide + 64 * q);
            low = _mm_add_epi32(low, _mm_add_epi32(_mm_madd_epi16(a, _mm_loadu_si128(k)), _mm_madd_epi16(b, _mm_loadu_si128(k + 2))));
            high = _mm_add_epi32(high, _mm_add_epi32(_mm_madd_epi16(a, _mm_loadu_si128(k + 4)), _mm_madd_epi16(b, _mm_loadu_si128(k + 6))));
        }
        const __m128i v = _mm_packus_epi32(join(low, high), _mm_setzero_si128());
        const int pixel = _mm_cvtsi128_si32(_mm_packus_epi16(v, v));
        std::memcpy(dst + 4 * o, &pixel, 4);
    }
}

void vertical(const uint8_t* const* rows, const int16_t* pairs, int n, uint8_t* dst, int bytes) {
    const __m128i zero = _mm_setzero_si128();
    for (int x = 0; x < bytes; x += 16) {
        __m128i low[4] = {zero, zero, zero, zero}, high[4] = {zero, zero, zero, zero};
        for (int i = 0; i < n; i += 2) {
            int32_t kl, kh;
            std::memcpy(&kl, pairs + 2 * i, 4);
            std::memcpy(&kh, pairs + 2 * i + 2, 4);
            const __m128i klow = _mm_set1_epi32(kl), khigh = _mm_set1_epi32(kh);
            const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[i] + x));
            const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[i + 1] + x));
            const __m128i lo = _mm_unpacklo_epi8(a, b), hi = _mm_unpackhi_epi8(a, b);
            const __m128i part[4] = {_mm_unpacklo_epi8(lo, zero), _mm_unpackhi_epi8(lo, zero), _mm_unpacklo_epi8(hi, zero),
                                     _mm_unpackhi_epi8(hi, zero)};
            for (int c = 0; c < 4; c++) {
                low[c] = _mm_add_epi32(low[c], _mm_madd_epi16(part[c], klow));
                high[c] = _mm_add_epi32(high[c], _mm_madd_epi16(part[c], khigh));
            }
        }
        const __m128i v0 = _mm_packus_epi32(join(low[0], high[0]), join(low[1], high[1]));
        const __m128i v1 = _mm_packus_epi32(join(low[2], high[2]), join(low[3], high[3]));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + x), _mm_packus_epi16(v0, v1));
    }
}

}  // namespace

const Kernels sse41_kernels = {"sse4.1", horizontal, vertical, planes, spread, nullptr};

}  // namespace fastload
