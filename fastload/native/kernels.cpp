// Chooses the kernels when first asked, by what the processor says it can do; and the portable ones, which are the reference.
#include "kernels.h"

#include <cstring>

namespace fastload {
namespace {

inline uint8_t clip(int32_t sum) {
    const int32_t v = sum >> kPrecisionBits;
    return static_cast<uint8_t>(v < 0 ? 0 : v > 255 ? 255 : v);
}

void horizontal(const uint8_t* src, uint8_t* dst, const TapsView& taps) {
    for (int o = 0; o < taps.count; o++) {
        const uint8_t* p = src + static_cast<size_t>(taps.start[o]) * 4;
        const int32_t* k = taps.k + static_cast<size_t>(o) * taps.stride;
        int32_t s0 = 1 << (kPrecisionBits - 1), s1 = s0, s2 = s0;
        for (int x = 0; x < taps.length[o]; x++, p += 4) {
            s0 += p[0] * k[x];
            s1 += p[1] * k[x];
            s2 += p[2] * k[x];
        }
        dst[4 * o] = clip(s0);
        dst[4 * o + 1] = clip(s1);
        dst[4 * o + 2] = clip(s2);
        dst[4 * o + 3] = 0;
    }
}

void vertical(const uint8_t* const* rows, const int16_t* pairs, int n, uint8_t* dst, int bytes) {
    for (int x = 0; x < bytes; x++) {
        int32_t sum = 1 << (kPrecisionBits - 1);
        for (int i = 0; i < n; i += 2) {
            const int16_t* k = pairs + 2 * i;
            sum += rows[i][x] * (k[0] + (k[2] << kLowBits)) + rows[i + 1][x] * (k[1] + (k[3] << kLowBits));
        }
        dst[x] = clip(sum);
    }
}

void planes(const uint8_t* src, uint8_t* r, uint8_t* g, uint8_t* b, int width) {
    for (int x = 0; x < width; x++, src += 4) {
        r[x] = src[0];
        g[x] = src[1];
        b[x] = src[2];
    }
}

void spread(const uint8_t* src, uint8_t* dst, int width) {
    for (int x = 0; x < width; x++, src += 3, dst += 4) {
        dst[0] = src[0];
        dst[1] = src[1];
        dst[2] = src[2];
        dst[3] = 0;
    }
}

bool supported(const Kernels& k) {
#if defined(__x86_64__)
    if (&k == &vbmi_kernels)
        return __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni") && supported(avx512_kernels);
    if (&k == &avx512_kernels) return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    if (&k == &avx2_kernels) return __builtin_cpu_supports("avx2");
    if (&k == &sse41_kernels) return __builtin_cpu_supports("sse4.1");
#endif
    (void)k;
    return true;
}

const Kernels* const kAll[] = {
#if defined(__x86_64__)
    &vbmi_kernels, &avx512_kernels, &avx2_kernels, &sse41_kernels,
#elif defined(__aarch64__)
    &neon_kernels,
#endif
    &portable_kernels,
};

}  // namespace

const Kernels portable_kernels = {"portable", horizontal, vertical, planes, spread, nullptr};

const Kernels* kernels(const char* name) {
    for (const Kernels* k : kAll)
        if (std::strcmp(k->name, name) == 0) return supported(*k) ? k : nullptr;
    return nullptr;
}

const Kernels* best_kernels() {
    for (const Kernels* k : kAll)
        if (supported(*k)) return k;
    return &portable_kernels;
}

const char* const* kernel_names() {
    static const char* names[sizeof(kAll) / sizeof(kAll[0]) + 1] = {};
    for (size_t i = 0; i < sizeof(kAll) / sizeof(kAll[0]); i++) names[i] = kAll[i]->name;
    return names;
}

}  // namespace fastload
