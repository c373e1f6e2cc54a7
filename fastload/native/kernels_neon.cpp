// Kernels for 64 bit ARM.
#include <arm_neon.h>

#include <cstring>

#include "kernels.h"

namespace fastload {
namespace {

constexpr int kRound = 1 << (kPrecisionBits - 1);

inline uint32x4_t join(uint32x4_t low, uint32x4_t high) {
    return vshrq_n_u32(vaddq_u32(vaddq_u32(low, vshlq_n_u32(high, kLowBits)), vdupq_n_u32(kRound)), kPrecisionBits);
}

void horizontal(const uint8_t* src, uint8_t* dst, const TapsView& taps) {
    for (int o = 0; o < taps.count; o++) {
        const uint8_t* p = src + 4 * static_cast<size_t>(taps.start[o]);
        const int32_t* k = taps.k + static_cast<size_t>(o) * taps.stride;
        uint32x4_t low = vdupq_n_u32(0), high = low;
        for (int x = 0; x < taps.length[o]; x += 2) {  // an odd last pixel meets a zero coefficient
            const uint16x8_t px = vmovl_u8(vld1_u8(p + 4 * x));
            low = vmlal_n_u16(low, vget_low_u16(px), static_cast<uint16_t>(k[x] & ((1 << kLowBits) - 1)));
            high = vmlal_n_u16(high, vget_low_u16(px), static_cast<uint16_t>(k[x] >> kLowBits));
            low = vmlal_n_u16(low, vget_high_u16(px), static_cast<uint16_t>(k[x + 1] & ((1 << kLowBits) - 1)));
            high = vmlal_n_u16(high, vget_high_u16(px), static_cast<uint16_t>(k[x + 1] >> kLowBits));
        }
        const uint16x4_t v = vqmovn_u32(join(low, high));
        const uint32_t pixel = vget_lane_u32(vreinterpret_u32_u8(vqmovn_u16(vcombine_u16(v, v))), 0);
        std::memcpy(dst + 4 * o, &pixel, 4);
    }
}

void vertical(const uint8_t* const* rows, const int16_t* pairs, int n, uint8_t* dst, int bytes) {
    for (int x = 0; x < bytes; x += 16) {
        uint32x4_t low[4], high[4];
        for (int c = 0; c < 4; c++) low[c] = high[c] = vdupq_n_u32(0);
        for (int i = 0; i < n; i++) {
            const int16_t* k = pairs + 4 * (i / 2) + i % 2;
            const uint16_t kl = static_cast<uint16_t>(k[0]), kh = static_cast<uint16_t>(k[2]);
            const uint8x16_t px = vld1q_u8(rows[i] + x);
            const uint16x8_t lo = vmovl_u8(vget_low_u8(px)), hi = vmovl_u8(vget_high_u8(px));
            low[0] = vmlal_n_u16(low[0], vget_low_u16(lo), kl);
            high[0] = vmlal_n_u16(high[0], vget_low_u16(lo), kh);
            low[1] = vmlal_n_u16(low[1], vget_high_u16(lo), kl);
            high[1] = vmlal_n_u16(high[1], vget_high_u16(lo), kh);
            low[2] = vmlal_n_u16(low[2], vget_low_u16(hi), kl);
            high[2] = vmlal_n_u16(high[2], vget_low_u16(hi), kh);
            low[3] = vmlal_n_u16(low[3], vget_high_u16(hi), kl);
            high[3] = vmlal_n_u16(high[3], vget_high_u16(hi), kh);
        }
        const uint16x8_t v0 = vcombine_u16(vqmovn_u32(join(low[0], high[0])), vqmovn_u32(join(low[1], high[1])));
        const uint16x8_t v1 = vcombine_u16(vqmovn_u32(join(low[2], high[2])), vqmovn_u32(join(low[3], high[3])));
        vst1q_u8(dst + x, vcombine_u8(vqmovn_u16(v0), vqmovn_u16(v1)));
    }
}

void planes(const uint8_t* src, uint8_t* r, uint8_t* g, uint8_t* b, int width) {
    int x = 0;
    for (; x + 16 <= width; x += 16, src += 64) {
        const uint8x16x4_t px = vld4q_u8(src);
        vst1q_u8(r + x, px.val[0]);
        vst1q_u8(g + x, px.val[1]);
        vst1q_u8(b + x, px.val[2]);
    }
    for (; x < width; x++, src += 4) {
        r[x] = src[0];
        g[x] = src[1];
        b[x] = src[2];
    }
}

void spread(const uint8_t* src, uint8_t* dst, int width) {
    int x = 0;
    for (; x + 16 <= width; x += 16, src += 48, dst += 64) {
        const uint8x16x3_t px = vld3q_u8(src);
        const uint8x16x4_t out = {{px.val[0], px.val[1], px.val[2], vdupq_n_u8(0)}};
        vst4q_u8(dst, out);
    }
    for (; x < width; x++, src += 3, dst += 4) {
        dst[0] = src[0];
        dst[1] = src[1];
        dst[2] = src[2];
        dst[3] = 0;
    }
}

}  // namespace

const Kernels neon_kernels = {"neon", horizontal, vertical, planes, spread, nullptr};

}  // namespace fastload
