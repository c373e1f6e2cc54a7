// Kernels for x86-64 with AVX-512 VBMI and VNNI: bytes in any order by one instruction, four products of bytes summed by another.
#include "kernels_avx512.h"
#include "packed.h"

namespace fastload {
namespace {

// The table of `prepare`: a header, where each group begins in the source, then for each group the order of its bytes and, for each
// four taps, three vectors of coefficients. Groups are padded to fours with zero coefficients.
struct Head {
    int groups, quads, wide;
};
constexpr int kGroup = 16, kLine = 64;
constexpr size_t kHead = 64;

inline int groups_of(int outputs) { return ((3 * outputs + kGroup - 1) / kGroup + 3) & ~3; }
inline size_t starts_bytes(int groups) { return (static_cast<size_t>(groups) * 4 + 63) & ~size_t{63}; }
inline size_t group_bytes(int quads) { return kLine * static_cast<size_t>(1 + 3 * quads); }

size_t table_bytes(int outputs, int stride) {
    const int groups = groups_of(outputs);
    const size_t digits = static_cast<size_t>(stride / 4) * 3 * (static_cast<size_t>(outputs) + 19) * 4;
    return kHead + starts_bytes(groups) + static_cast<size_t>(groups) * group_bytes(stride / 4) + digits;
}

// Four outputs' coefficients of four taps each, from `k` on, as signed bytes: a lane for each output.
inline void digits_of_four(const int32_t* k, int stride, __mmask16 live, int32_t* a, int32_t* b, int32_t* c) {
    __m512i v = _mm512_setzero_si512();
    v = _mm512_mask_loadu_epi32(v, live & 0x000f, k);
    v = _mm512_mask_loadu_epi32(v, live & 0x00f0, k + stride - 4);
    v = _mm512_mask_loadu_epi32(v, live & 0x0f00, k + 2 * stride - 8);
    v = _mm512_mask_loadu_epi32(v, live & 0xf000, k + 3 * stride - 12);
    const __m512i half = _mm512_set1_epi32(128);
    const __m512i second = _mm512_srai_epi32(_mm512_add_epi32(v, half), 8);
    const __m512i third = _mm512_srai_epi32(_mm512_add_epi32(second, half), 8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(a), _mm512_cvtepi32_epi8(v));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(b), _mm512_cvtepi32_epi8(second));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(c), _mm512_cvtepi32_epi8(third));
}

bool prepare(const TapsView& taps, int pixel, uint8_t* table) {
    const int quads = (taps.most + 3) / 4, groups = groups_of(taps.count);
    const size_t lanes = static_cast<size_t>(taps.count) + 19;  // room to read 16 from any output on
    int32_t* starts = reinterpret_cast<int32_t*>(table + kHead);
    uint8_t* out = table + kHead + starts_bytes(groups);
    int32_t* digits = reinterpret_cast<int32_t*>(out + static_cast<size_t>(groups) * group_bytes(quads));
    for (int q = 0; q < quads; q++) {
        int32_t* d = digits + static_cast<size_t>(q) * 3 * lanes;
        for (int o = 0; o < taps.count; o += 4) {
            const int left = taps.count - o;
            digits_of_four(taps.k + static_cast<size_t>(o) * taps.stride + 4 * q, taps.stride,
                           static_cast<__mmask16>((1 << (4 * (left < 4 ? left : 4))) - 1), d + o, d + lanes + o, d + 2 * lanes + o);
        }
    }
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i taps4 = _mm512_set1_epi32((3 * pixel) << 24 | (2 * pixel) << 16 | pixel << 8);
    int furthest = 0;
    for (int g = 0; g < groups; g++) {
        const int first = kGroup * g / 3, phase = kGroup * g % 3, left = taps.count - first;
        if (left <= 0) {
            starts[g] = 0;
            std::memset(out, 0, group_bytes(quads));
            out += group_bytes(quads);
            continue;
        }
        // output and channel of each lane: (phase + lane) / 3 and the rest, by a multiplication
        const __m512i at = _mm512_add_epi32(lane, _mm512_set1_epi32(phase));
        const __m512i output = _mm512_srli_epi32(_mm512_mullo_epi32(at, _mm512_set1_epi32(43691)), 17);
        const __m512i channel = _mm512_sub_epi32(at, _mm512_mullo_epi32(output, _mm512_set1_epi32(3)));
        const __mmask16 live = _mm512_cmplt_epi32_mask(output, _mm512_set1_epi32(left));
        const int last = first + (left < 6 ? left - 1 : 5);
        const int low = taps.start[first] < taps.start[last] ? taps.start[first] : taps.start[last];
        const int high = taps.start[first] + taps.start[last] - low;
        if (high - low > furthest) furthest = high - low;
        starts[g] = low * pixel;
        const __m512i own = _mm512_maskz_loadu_epi32(left >= 16 ? 0xffff : static_cast<__mmask16>((1 << left) - 1), taps.start + first);
        __m512i byte = _mm512_sub_epi32(_mm512_permutexvar_epi32(output, own), _mm512_set1_epi32(low));
        byte = _mm512_add_epi32(_mm512_mullo_epi32(byte, _mm512_set1_epi32(pixel)), channel);
        byte = _mm512_add_epi32(_mm512_mullo_epi32(byte, _mm512_set1_epi32(0x01010101)), taps4);
        _mm512_storeu_si512(out, _mm512_maskz_mov_epi32(live, byte));
        out += kLine;
        for (int part = 0; part < 3 * quads; part++, out += kLine) {
            const __m512i of = _mm512_loadu_si512(digits + static_cast<size_t>(part) * lanes + first);
            _mm512_storeu_si512(out, _mm512_maskz_permutexvar_epi32(live, output, of));
        }
    }
    const int reach = furthest * pixel + 3 * pixel + 2;  // of the last byte of a group's first four taps
    Head* head = reinterpret_cast<Head*>(table);
    *head = {groups, quads, reach > 63};
    return reach <= 127;
}

void weights(const TapsView& taps, int32_t (*weights)[3]) {
    const int quads = (taps.most + 3) / 4;
    alignas(16) int32_t d[3][4];
    for (int q = 0; q < quads; q++)
        for (int o = 0; o < taps.count; o += 4) {
            const int n = taps.count - o < 4 ? taps.count - o : 4;
            digits_of_four(taps.k + static_cast<size_t>(o) * taps.stride + 4 * q, taps.stride,
                           static_cast<__mmask16>((1 << (4 * n)) - 1), d[0], d[1], d[2]);
            for (int i = 0; i < n; i++)
                for (int part = 0; part < 3; part++) weights[static_cast<size_t>(o + i) * quads + q][part] = d[part][i];
        }
}

inline __m512i joined(__m512i a, __m512i b, __m512i c) {
    const __m512i high = _mm512_add_epi32(_mm512_slli_epi32(c, 8), b);
    return _mm512_srli_epi32(_mm512_add_epi32(_mm512_slli_epi32(high, 8), a), kPrecisionBits);
}

template <int Quads, bool Wide>
inline __m512i group(const uint8_t* p, const uint8_t* table, int quads, int step) {
    const __m512i order = _mm512_load_si512(table);
    __m512i a = _mm512_set1_epi32(kRound), b = _mm512_setzero_si512(), c = b;
    for (int q = 0; q < (Quads ? Quads : quads); q++) {
        const __m512i near = _mm512_loadu_si512(p + q * step);
        const __m512i px = Wide ? _mm512_permutex2var_epi8(near, order, _mm512_loadu_si512(p + q * step + 64))
                                : _mm512_permutexvar_epi8(order, near);
        const uint8_t* k = table + kLine * (1 + 3 * q);
        a = _mm512_dpbusd_epi32(a, px, _mm512_load_si512(k));
        b = _mm512_dpbusd_epi32(b, px, _mm512_load_si512(k + 64));
        c = _mm512_dpbusd_epi32(c, px, _mm512_load_si512(k + 128));
    }
    return joined(a, b, c);
}

template <int Quads, bool Wide>
inline void row(const uint8_t* src, uint8_t* dst, int step, const uint8_t* table) {
    const Head head = *reinterpret_cast<const Head*>(table);
    const int32_t* starts = reinterpret_cast<const int32_t*>(table + kHead);
    const uint8_t* t = table + kHead + starts_bytes(head.groups);
    const size_t next = group_bytes(Quads ? Quads : head.quads);
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    for (int g = 0; g < head.groups; g += 4, t += 4 * next, dst += 64) {
        const __m512i s0 = group<Quads, Wide>(src + starts[g], t, head.quads, step);
        const __m512i s1 = group<Quads, Wide>(src + starts[g + 1], t + next, head.quads, step);
        const __m512i s2 = group<Quads, Wide>(src + starts[g + 2], t + 2 * next, head.quads, step);
        const __m512i s3 = group<Quads, Wide>(src + starts[g + 3], t + 3 * next, head.quads, step);
        const __m512i bytes = _mm512_packus_epi16(_mm512_packus_epi32(s0, s1), _mm512_packus_epi32(s2, s3));
        _mm512_storeu_si512(dst, _mm512_permutexvar_epi32(order, bytes));
    }
}

template <bool Wide>
inline void any_row(const uint8_t* src, uint8_t* dst, int quads, int step, const uint8_t* table) {
    switch (quads) {
        case 1: return row<1, Wide>(src, dst, step, table);
        case 2: return row<2, Wide>(src, dst, step, table);
        default: return row<0, Wide>(src, dst, step, table);
    }
}

void horizontal(const uint8_t* src, uint8_t* dst, int pixel, const uint8_t* table) {
    const Head head = *reinterpret_cast<const Head*>(table);
    return head.wide ? any_row<true>(src, dst, head.quads, 4 * pixel, table) : any_row<false>(src, dst, head.quads, 4 * pixel, table);
}

template <int Quads>
inline void sum(const uint8_t* const* rows, const int32_t (*weights)[3], int quads, uint8_t* dst, int bytes) {
    for (int x = 0; x < bytes; x += 64) {
        __m512i a0 = _mm512_set1_epi32(kRound), a1 = a0, a2 = a0, a3 = a0;
        __m512i b0 = _mm512_setzero_si512(), b1 = b0, b2 = b0, b3 = b0, c0 = b0, c1 = b0, c2 = b0, c3 = b0;
        for (int q = 0; q < (Quads ? Quads : quads); q++) {
            const __m512i r0 = _mm512_loadu_si512(rows[4 * q] + x), r1 = _mm512_loadu_si512(rows[4 * q + 1] + x);
            const __m512i r2 = _mm512_loadu_si512(rows[4 * q + 2] + x), r3 = _mm512_loadu_si512(rows[4 * q + 3] + x);
            const __m512i low01 = _mm512_unpacklo_epi8(r0, r1), high01 = _mm512_unpackhi_epi8(r0, r1);
            const __m512i low23 = _mm512_unpacklo_epi8(r2, r3), high23 = _mm512_unpackhi_epi8(r2, r3);
            const __m512i v0 = _mm512_unpacklo_epi16(low01, low23), v1 = _mm512_unpackhi_epi16(low01, low23);
            const __m512i v2 = _mm512_unpacklo_epi16(high01, high23), v3 = _mm512_unpackhi_epi16(high01, high23);
            const __m512i ka = _mm512_set1_epi32(weights[q][0]), kb = _mm512_set1_epi32(weights[q][1]);
            const __m512i kc = _mm512_set1_epi32(weights[q][2]);
            a0 = _mm512_dpbusd_epi32(a0, v0, ka), a1 = _mm512_dpbusd_epi32(a1, v1, ka);
            a2 = _mm512_dpbusd_epi32(a2, v2, ka), a3 = _mm512_dpbusd_epi32(a3, v3, ka);
            b0 = _mm512_dpbusd_epi32(b0, v0, kb), b1 = _mm512_dpbusd_epi32(b1, v1, kb);
            b2 = _mm512_dpbusd_epi32(b2, v2, kb), b3 = _mm512_dpbusd_epi32(b3, v3, kb);
            c0 = _mm512_dpbusd_epi32(c0, v0, kc), c1 = _mm512_dpbusd_epi32(c1, v1, kc);
            c2 = _mm512_dpbusd_epi32(c2, v2, kc), c3 = _mm512_dpbusd_epi32(c3, v3, kc);
        }
        const __m512i low = _mm512_packus_epi32(joined(a0, b0, c0), joined(a1, b1, c1));
        const __m512i high = _mm512_packus_epi32(joined(a2, b2, c2), joined(a3, b3, c3));
        _mm512_storeu_si512(dst + x, _mm512_packus_epi16(low, high));
    }
}

void vertical4(const uint8_t* const* rows, const int32_t (*weights)[3], int quads, uint8_t* dst, int bytes) {
    return quads == 1 ? sum<1>(rows, weights, 1, dst, bytes) : sum<0>(rows, weights, quads, dst, bytes);
}

// Every third byte of 192, from byte `Channel` on.
template <int Channel>
inline __m512i third(__m512i p0, __m512i p1, __m512i p2) {
    alignas(64) static constexpr auto orders = [] {
        struct {
            uint8_t front[64] = {}, back[64] = {};
            uint64_t behind = 0;
        } t;
        for (int i = 0; i < 64; i++) {
            const int at = 3 * i + Channel;
            t.front[i] = static_cast<uint8_t>(at < 128 ? at : 0);
            t.back[i] = static_cast<uint8_t>(at < 128 ? 0 : at - 128);
            if (at >= 128) t.behind |= uint64_t{1} << i;
        }
        return t;
    }();
    const __m512i front = _mm512_permutex2var_epi8(p0, _mm512_loadu_si512(orders.front), p1);
    return _mm512_mask_permutexvar_epi8(front, orders.behind, _mm512_loadu_si512(orders.back), p2);
}

void planes3(const uint8_t* src, uint8_t* r, uint8_t* g, uint8_t* b, int width) {
    for (int x = 0; x < width; x += 64, src += 192) {
        const __mmask64 live = width - x >= 64 ? ~__mmask64{0} : (__mmask64{1} << (width - x)) - 1;
        const __m512i p0 = _mm512_loadu_si512(src), p1 = _mm512_loadu_si512(src + 64), p2 = _mm512_loadu_si512(src + 128);
        _mm512_mask_storeu_epi8(r + x, live, third<0>(p0, p1, p2));
        _mm512_mask_storeu_epi8(g + x, live, third<1>(p0, p1, p2));
        _mm512_mask_storeu_epi8(b + x, live, third<2>(p0, p1, p2));
    }
}

const Packed packed = {table_bytes, prepare, weights, horizontal, vertical4, planes3};

}  // namespace

const Kernels vbmi_kernels = {"avx512vbmi", horizontal256, vertical, planes, spread, &packed};

}  // namespace fastload
