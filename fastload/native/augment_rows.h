// The loops of augment.h, written once and compiled for each instruction set: plain C++ that the compiler makes vectors of.
// Included by augment_*.cpp alone, which define FASTLOAD_ROWS, the table's name, and FASTLOAD_ROWS_NAME.
#include <cmath>
#include <cstring>

#include "augment.h"

namespace fastload {
namespace {

using Pixel = float __attribute__((vector_size(4 * kLanes)));

using Pair = float __attribute__((vector_size(8 * kLanes)));  // two pixels side by side

template <typename V>
inline V load(const float* at) {
    V v;
    std::memcpy(&v, at, sizeof v);
    return v;
}

inline Pixel half(const Pair& pair, int second) {
    Pixel p;
    std::memcpy(&p, reinterpret_cast<const char*>(&pair) + second * sizeof p, sizeof p);
    return p;
}

void divide(const uint8_t* __restrict src, float* __restrict dst, int n, float divisor) {
    for (int i = 0; i < n; i++) dst[i] = static_cast<float>(src[i]) / divisor;
}

template <typename T>
inline void open_rows(const T* __restrict src, size_t plane, int lanes, float* __restrict dst, int n, float factor) {
    if (lanes == 3) {
        const T* __restrict r = src;
        const T* __restrict g = src + plane;
        const T* __restrict b = src + 2 * plane;
        for (int i = 0; i < n; i++) {
            dst[kLanes * i] = static_cast<float>(r[i]) * factor;
            dst[kLanes * i + 1] = static_cast<float>(g[i]) * factor;
            dst[kLanes * i + 2] = static_cast<float>(b[i]) * factor;
            dst[kLanes * i + 3] = 0.0f;
        }
        return;
    }
    for (int i = 0; i < n; i++)
        for (int c = 0; c < kLanes; c++) dst[kLanes * i + c] = c < lanes ? static_cast<float>(src[c * plane + i]) * factor : 0.0f;
}

void open_bytes(const uint8_t* src, size_t plane, int lanes, float* dst, int n, float divisor) {
    open_rows(src, plane, lanes, dst, n, 1.0f / divisor);
}

void open_floats(const float* src, size_t plane, int lanes, float* dst, int n) { open_rows(src, plane, lanes, dst, n, 1.0f); }

// torch's grid_sample folds a coordinate back and forth between `low` and `low + span`.
void reflect(double* __restrict at, int n, double low, double span) {
    const double inverse = span > 0.0 ? 1.0 / span : 0.0;
    for (int i = 0; i < n; i++) {
        const double v = std::fabs(at[i] - low), flips = std::floor(v * inverse), rest = v - flips * span;
        const double odd = flips - 2.0 * std::floor(flips * 0.5);
        at[i] = rest + odd * (span - 2.0 * rest) + low;
    }
}

// Whole part into `at`, fraction into `beyond`, of coordinates brought within [low, high].
void split(double* __restrict at, float* __restrict beyond, int n, double low, double high) {
    for (int i = 0; i < n; i++) {
        double v = at[i] < low ? low : at[i];
        v = v > high ? high : v;
        const double whole = std::floor(v);
        at[i] = whole;
        beyond[i] = static_cast<float>(v - whole);
    }
}

void place(const double* map, int y, int n, int width, int height, int stride, Pad pad, bool align_corners, Places& places) {
    const double u0 = map[1] * y + map[2], v0 = map[4] * y + map[5], w0 = map[7] * y + map[8];
    const double du = map[0], dv = map[3], dw = map[6];
    double* __restrict u = places.across.data();
    double* __restrict v = places.along.data();
    for (int x = 0; x < n; x++) {
        const double w = 1.0 / (dw * x + w0);
        u[x] = (du * x + u0) * w;
        v[x] = (dv * x + v0) * w;
    }
    if (pad == Pad::kReflection) {
        const double low = align_corners ? 0.0 : -0.5, less = align_corners ? 1.0 : 0.0;
        reflect(u, n, low, width - less);
        reflect(v, n, low, height - less);
    }
    const double out = pad == Pad::kZeros ? 1.0 : 0.0;  // up to there a neighbour of zeros counts
    split(u, places.right.data(), n, -out, width - 1.0 + out);
    split(v, places.down.data(), n, -out, height - 1.0 + out);
    int32_t* __restrict first = places.first.data();
    for (int x = 0; x < n; x++) first[x] = static_cast<int32_t>((v[x] + kBefore) * stride + (u[x] + kBefore));
}

void gather(const float* __restrict picture, int stride, const Places& places, float* __restrict dst, int n) {
    const int32_t* __restrict first = places.first.data();
    const float* __restrict right = places.right.data();
    const float* __restrict down = places.down.data();
    const size_t row = static_cast<size_t>(stride) * kLanes;
    for (int x = 0; x < n; x++, dst += kLanes) {
        const float* a = picture + static_cast<size_t>(first[x]) * kLanes;
        const float r = right[x], d = down[x];
        const Pair both = load<Pair>(a) * (1.0f - d) + load<Pair>(a + row) * d;
        const Pixel p = half(both, 0) * (1.0f - r) + half(both, 1) * r;
        std::memcpy(dst, &p, sizeof p);
    }
}

void add(const float* __restrict row, float* __restrict sums, int n) {
    for (int i = 0; i < n; i++) sums[i] += row[i];
}

void average(const float* __restrict sums, const int32_t* starts, const int32_t* ends, int rows, float* __restrict dst, int n) {
    for (int x = 0; x < n; x++, dst += kLanes) {
        Pixel p = load<Pixel>(sums + static_cast<size_t>(starts[x]) * kLanes);
        for (int k = starts[x] + 1; k < ends[x]; k++) p += load<Pixel>(sums + static_cast<size_t>(k) * kLanes);
        p /= static_cast<float>((ends[x] - starts[x]) * rows);
        std::memcpy(dst, &p, sizeof p);
    }
}

void apart(const float* __restrict src, int lane, float* __restrict dst, int n) {
    for (int x = 0; x < n; x++) dst[x] = src[kLanes * x + lane];
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
        const float given = values[i];
        const bool number = given == given;  // what is none stays none, as in stock
        float x = number ? given : 0.5f;
        x = x < 1e-7f ? 1e-7f : x;
        x = x > 0.9999999f ? 0.9999999f : x;  // 1 - 1e-7 as a float, fastai's logit
        float t = a * log_of(1.0f / x - 1.0f) - b;
        t = t > 86.0f ? 86.0f : t;
        t = t < -86.0f ? -86.0f : t;
        values[i] = number ? 1.0f / (1.0f + exp_of(t)) : given;
    }
}

void normalise(float* __restrict values, int n, float mean, float deviation) {
    for (int i = 0; i < n; i++) values[i] = (values[i] - mean) / deviation;
}

}  // namespace

const RowKernels FASTLOAD_ROWS = {FASTLOAD_ROWS_NAME, divide, open_bytes, open_floats, place, gather, add, average, apart, light, normalise};

}  // namespace fastload
