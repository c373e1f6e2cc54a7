// The arithmetic is in double and in Pillow's order, so that every coefficient comes out the same.
#include "taps.h"

#include <cstring>

namespace fastload {

void Taps::fill(int in, double from, double extent, int out, int first, int n, bool mirrored) {
    const double scale = extent / out;
    const double filterscale = scale < 1.0 ? 1.0 : scale;
    const double support = filterscale;  // the triangle's own support is 1
    const double ss = 1.0 / filterscale;
    const int room = static_cast<int>(support) * 2 + 3;
    count = n;
    most = 0;
    stride = (room + 7) & ~7;
    start.assign(static_cast<size_t>(n), 0);
    length.assign(static_cast<size_t>(n), 0);
    k.assign(static_cast<size_t>(n) * stride, 0);
    std::vector<double> w(static_cast<size_t>(room));
    for (int o = 0; o < n; o++) {
        const double center = from + (first + o + 0.5) * scale;
        int lo = static_cast<int>(center - support + 0.5);
        if (lo < 0) lo = 0;
        int hi = static_cast<int>(center + support + 0.5);
        if (hi > in) hi = in;
        const int len = hi - lo;
        double sum = 0.0;
        for (int x = 0; x < len; x++) {
            double d = (x + lo - center + 0.5) * ss;
            if (d < 0.0) d = -d;
            w[static_cast<size_t>(x)] = d < 1.0 ? 1.0 - d : 0.0;
            sum += w[static_cast<size_t>(x)];
        }
        start[static_cast<size_t>(o)] = mirrored ? in - lo - len : lo;
        length[static_cast<size_t>(o)] = len;
        if (len > most) most = len;
        int32_t* kk = k.data() + static_cast<size_t>(o) * stride;
        for (int x = 0; x < len; x++) {
            const double v = sum != 0.0 ? w[static_cast<size_t>(x)] / sum : w[static_cast<size_t>(x)];
            kk[mirrored ? len - 1 - x : x] = static_cast<int32_t>(0.5 + v * (1 << kPrecisionBits));
        }
    }
}

void Taps::keep_within(int in) {
    const int far = (most + 3) & ~3;
    for (int o = 0; o < count; o++) {
        int& begin = start[static_cast<size_t>(o)];
        int& len = length[static_cast<size_t>(o)];
        const int excess = begin + far - in, shift = excess < begin ? excess : begin;
        if (shift <= 0) continue;
        int32_t* kk = k.data() + static_cast<size_t>(o) * stride;
        std::memmove(kk + shift, kk, static_cast<size_t>(stride - shift) * sizeof(int32_t));
        std::memset(kk, 0, static_cast<size_t>(shift) * sizeof(int32_t));
        begin -= shift;
        len += shift;
        if (len > most) most = len;  // within `far` all the same
    }
}

void Taps::pair_up() {
    pairs.resize(static_cast<size_t>(count) * stride * 2);
    int16_t* p = pairs.data();
    const int32_t* kk = k.data();
    for (const int32_t* end = kk + static_cast<size_t>(count) * stride; kk < end; kk += 2, p += 4) {
        p[0] = static_cast<int16_t>(kk[0] & ((1 << kLowBits) - 1));
        p[1] = static_cast<int16_t>(kk[1] & ((1 << kLowBits) - 1));
        p[2] = static_cast<int16_t>(kk[0] >> kLowBits);
        p[3] = static_cast<int16_t>(kk[1] >> kLowBits);
    }
}

void Taps::widen() {
    const size_t quads = static_cast<size_t>(stride) / 4;
    wide.assign(static_cast<size_t>(count + 1) / 2 * quads * 64, 0);
    const int16_t* p = pairs.data();
    for (int o = 0; o < count; o++) {
        int16_t* w = wide.data() + static_cast<size_t>(o / 2) * quads * 64 + 8 * (o & 1);
        for (size_t q = 0; q < quads; q++, p += 8, w += 64) {
            const int16_t parts[4][2] = {{p[0], p[1]}, {p[4], p[5]}, {p[2], p[3]}, {p[6], p[7]}};
            for (int part = 0; part < 4; part++)
                for (int c = 0; c < 4; c++) std::memcpy(w + 16 * part + 2 * c, parts[part], 4);
        }
    }
}

TapsView Taps::view() const { return {count, stride, most, start.data(), length.data(), k.data(), wide.data()}; }

}  // namespace fastload
