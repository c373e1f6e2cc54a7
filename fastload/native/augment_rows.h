// The loops of augment.h, written once and compiled for each instruction set: plain C++ that the compiler makes vectors of.
// Included by augment_*.cpp alone, which define FASTLOAD_ROWS, the table's name, and FASTLOAD_ROWS_NAME.
#include <cmath>
#include <cstring>

#include "augment.h"

namespace fastload {
namespace {

void unpack(const uint8_t* __restrict src, float* __restrict dst, int n, float divisor) {
    for (int i = 0; i < n; i++) dst[i] = static_cast<float>(src[i]) / divisor;
}

// torch's grid_sample folds a coordinate back and forth between `low` and `low + span`.
inline double reflected(double at, double low, double span, double inverse) {
    at = std::fabs(at - low);
    const double flips = std::floor(at * inverse);
    const double rest = at - flips * span;
    const bool odd = flips - 2.0 * std::floor(flips * 0.5) != 0.0;
    return (odd ? span - rest : rest) + low;
}

struct Axis {
    double last, low, span, inverse;
    int count;
};

inline Axis axis(int count, bool align_corners) {
    const double span = align_corners ? count - 1.0 : count;
    return {count - 1.0, align_corners ? 0.0 : -0.5, span, span > 0.0 ? 1.0 / span : 0.0, count};
}

template <Pad kPad>
inline void tap(double at, const Axis& a, int32_t& first, int32_t& step, float& low, float& high) {
    if constexpr (kPad == Pad::kReflection) at = reflected(at, a.low, a.span, a.inverse);
    if constexpr (kPad == Pad::kZeros) {
        at = at < -1.0 ? -1.0 : at;
        at = at > a.last + 1.0 ? a.last + 1.0 : at;
        const double whole = std::floor(at);
        const int32_t i = static_cast<int32_t>(whole);
        const float f = static_cast<float>(at - whole);
        const int32_t i0 = i < 0 ? 0 : i > a.count - 1 ? a.count - 1 : i, j = i + 1;
        const int32_t i1 = j > a.count - 1 ? a.count - 1 : j;
        first = i0;
        step = i1 - i0;
        low = i >= 0 && i < a.count ? 1.0f - f : 0.0f;
        high = j < a.count ? f : 0.0f;
        return;
    }
    at = at < 0.0 ? 0.0 : at;
    at = at > a.last ? a.last : at;
    const int32_t i = static_cast<int32_t>(at);
    const float f = static_cast<float>(at - i);
    first = i;
    step = i < a.count - 1 ? 1 : 0;
    low = 1.0f - f;
    high = f;
}

template <Pad kPad>
void place_as(const double* map, int y, int n, const Axis& across, const Axis& along, int stride, Taps4& taps) {
    const double u0 = map[1] * y + map[2], v0 = map[4] * y + map[5], w0 = map[7] * y + map[8];
    const double du = map[0], dv = map[3], dw = map[6];
    int32_t* __restrict first = taps.first.data();
    int32_t* __restrict right = taps.right.data();
    int32_t* __restrict down = taps.down.data();
    float* __restrict lw = taps.left_weight.data();
    float* __restrict rw = taps.right_weight.data();
    float* __restrict tw = taps.top_weight.data();
    float* __restrict bw = taps.bottom_weight.data();
    for (int x = 0; x < n; x++) {
        const double w = 1.0 / (dw * x + w0);
        int32_t i, j, di, dj;
        tap<kPad>((du * x + u0) * w, across, i, di, lw[x], rw[x]);
        tap<kPad>((dv * x + v0) * w, along, j, dj, tw[x], bw[x]);
        first[x] = j * stride + i;
        right[x] = di;
        down[x] = dj * stride;
    }
}

void place(const double* map, int y, int n, int width, int height, int stride, Pad pad, bool align_corners, Taps4& taps) {
    const Axis across = axis(width, align_corners), along = axis(height, align_corners);
    if (pad == Pad::kZeros) place_as<Pad::kZeros>(map, y, n, across, along, stride, taps);
    if (pad == Pad::kBorder) place_as<Pad::kBorder>(map, y, n, across, along, stride, taps);
    if (pad == Pad::kReflection) place_as<Pad::kReflection>(map, y, n, across, along, stride, taps);
}

void gather(const float* __restrict plane, const Taps4& taps, float* __restrict dst, int n) {
    const int32_t* __restrict first = taps.first.data();
    const int32_t* __restrict right = taps.right.data();
    const int32_t* __restrict down = taps.down.data();
    const float* __restrict lw = taps.left_weight.data();
    const float* __restrict rw = taps.right_weight.data();
    const float* __restrict tw = taps.top_weight.data();
    const float* __restrict bw = taps.bottom_weight.data();
    for (int x = 0; x < n; x++) {
        const int32_t a = first[x], b = a + down[x];
        const float top = plane[a] * lw[x] + plane[a + right[x]] * rw[x];
        const float bottom = plane[b] * lw[x] + plane[b + right[x]] * rw[x];
        dst[x] = top * tw[x] + bottom * bw[x];
    }
}

inline int32_t bits_of(float v) {
    int32_t bits;
    std::memcpy(&bits, &v, sizeof bits);
    return bits;
}

inline float float_of(int32_t bits) {
    float v;
    std::memcpy(&v, &bits, sizeof v);
    return v;
}

// Natural logarithm of a normal positive number: its exponent, and 2 artanh((m - 1) / (m + 1)) of the rest, |.| < 0.172.
inline float log_of(float v) {
    const int32_t e = (bits_of(v) - 0x3f3504f3) >> 23;
    const float m = float_of(bits_of(v) - e * (1 << 23)), s = (m - 1.0f) / (m + 1.0f), q = s * s;
    const float p = 2.0f + q * (2.0f / 3 + q * (2.0f / 5 + q * (2.0f / 7 + q * (2.0f / 9))));
    return s * p + static_cast<float>(e) * 0.693147181f;
}

// exp(v) for |v| < 87: a power of two, and Taylor's series of what is left, |.| < 0.347.
inline float exp_of(float v) {
    const float n = std::floor(v * 1.44269504f + 0.5f);
    const float r = (v - n * 0.693359375f) + n * 2.12194440e-4f;
    const float p = 1 + r * (1 + r * (1.0f / 2 + r * (1.0f / 6 + r * (1.0f / 24 + r * (1.0f / 120 + r * (1.0f / 720 + r / 5040))))));
    return p * float_of((static_cast<int32_t>(n) + 127) * (1 << 23));
}

void light(float* __restrict values, int n, float a, float b) {
    for (int i = 0; i < n; i++) {
        float x = values[i];
        x = x < 1e-7f ? 1e-7f : x;
        x = x > 0.9999999f ? 0.9999999f : x;  // 1 - 1e-7 as a float, fastai's logit
        float t = a * log_of(1.0f / x - 1.0f) - b;
        t = t > 86.0f ? 86.0f : t;
        t = t < -86.0f ? -86.0f : t;
        values[i] = 1.0f / (1.0f + exp_of(t));
    }
}

void normalise(float* __restrict values, int n, float mean, float deviation) {
    for (int i = 0; i < n; i++) values[i] = (values[i] - mean) / deviation;
}

}  // namespace

const RowKernels FASTLOAD_ROWS = {FASTLOAD_ROWS_NAME, unpack, place, gather, light, normalise};

}  // namespace fastload
