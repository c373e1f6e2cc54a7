// Both orders of the two passes. A pass whose size does not change is left out, as Pillow does; each pass rounds to 8 bits.
#include "resize.h"

#include <cstring>

namespace fastload {
namespace {

constexpr size_t kSlack = 192;
// libjpeg-turbo writes rows that are 32-byte aligned past the cache, and they are read right back: 16 bytes off keeps them in it.
constexpr size_t kOffset = 16;

size_t pitch_of(int pixels) { return ((static_cast<size_t>(pixels) * 4 + 63) & ~size_t{63}) + kSlack; }

int ring_size(int most) {
    int n = 2;
    while (n < most + 2) n *= 2;
    return n;
}

void grow(std::vector<uint8_t>& v, size_t bytes) {
    if (v.size() < bytes + 256) v.resize(bytes + 256);
}

}  // namespace

uint8_t* Resizer::align(std::vector<uint8_t>& v) {
    return reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(v.data()) + 63) & ~uintptr_t{63}) + kOffset;
}

size_t Resizer::bytes() const {
    return ring_.capacity() + row_.capacity() + sum_.capacity() + table_.capacity() + weights_.capacity() * 4 + (x_.wide.capacity() + y_.wide.capacity()) * 2;
}

void Resizer::run(Rows& rows, const Shape& s, const Target& t, const Kernels& k) {
    const double wide = s.across.extent > 0.0 ? s.across.extent : s.width;
    const double high = s.down.extent > 0.0 ? s.down.extent : s.height;
    const double from = s.mirrored && s.across.extent > 0.0 ? s.width - s.across.from - wide : s.across.from;
    x_.fill(s.width, from, wide, s.out_width, s.left, s.right - s.left, s.mirrored);
    x_.keep_within(s.width);
    y_.fill(s.height, s.down.from, high, s.out_height, s.top, s.bottom - s.top, false);
    grow(row_, pitch_of(s.width > s.right - s.left ? s.width : s.right - s.left));  // a row as read, or as resized last
    const int fewer_rows = s.height - s.out_height, fewer_columns = s.width - s.out_width;
    const bool columns_last = s.pillow13 && fewer_rows > 0 && fewer_rows > 2 * fewer_columns;
    if (k.packed != nullptr && t.channels == 3 && !columns_last && !s.keeps_width() && !s.keeps_height() && packed(rows, s, t, *k.packed))
        return;
    x_.pair_up();
    x_.widen();
    y_.pair_up();
    if (columns_last)
        vertical_first(rows, s, t, k);
    else
        horizontal_first(rows, s, t, k);
}

// One row through the horizontal pass, or copied where the width stays.
void Resizer::across(const uint8_t* src, uint8_t* dst, const Shape& s, const Kernels& k) const {
    if (!s.keeps_width()) {
        k.horizontal(src, dst, x_.view());
    } else if (!s.mirrored) {
        std::memcpy(dst, src + 4 * static_cast<size_t>(s.left), 4 * static_cast<size_t>(s.right - s.left));
    } else {
        for (int x = s.left; x < s.right; x++) std::memcpy(dst + 4 * (x - s.left), src + 4 * static_cast<size_t>(s.width - 1 - x), 4);
    }
}

// One output row of the vertical pass over the ring.
const uint8_t* Resizer::down(int o, size_t pitch, int bytes, const Kernels& k) {
    const int first = y_.start[static_cast<size_t>(o)], n = y_.length[static_cast<size_t>(o)];
    for (int i = 0; i < n; i++) pointers_[static_cast<size_t>(i)] = ring(first + i, pitch);
    pointers_[static_cast<size_t>(n)] = pointers_[static_cast<size_t>(n) - 1];
    k.vertical(pointers_.data(), y_.pair(o), (n + 1) & ~1, align(sum_), bytes);
    return align(sum_);
}

void Resizer::horizontal_first(Rows& rows, const Shape& s, const Target& t, const Kernels& k) {
    const size_t pitch = pitch_of(s.right - s.left);
    const int bytes = ((s.right - s.left) * 4 + 15) & ~15, wanted = s.bottom - s.top;
    if (s.keeps_height()) {
        grow(sum_, pitch);
        for (int y = 0; y < s.bottom; y++) {
            const uint8_t* src = rows.next(align(row_));
            if (y < s.top) continue;
            across(src, align(sum_), s, k);
            store(align(sum_), y - s.top, s, t, k);
        }
        return;
    }
    const int slots = ring_size(y_.view().most);
    mask_ = slots - 1;
    grow(ring_, pitch * static_cast<size_t>(slots));
    grow(sum_, pitch);
    pointers_.resize(static_cast<size_t>(y_.stride) + 2);
    int have = 0;
    for (int o = 0; o < wanted; o++) {
        const int first = y_.start[static_cast<size_t>(o)], end = first + y_.length[static_cast<size_t>(o)];
        for (; have < end; have++) {
            const uint8_t* src = rows.next(align(row_));
            if (have >= first) across(src, ring(have, pitch), s, k);
        }
        store(down(o, pitch, bytes, k), o, s, t, k);
    }
}

// Both passes over rows of three bytes a pixel; false where the horizontal one can't.
bool Resizer::packed(Rows& rows, const Shape& s, const Target& t, const Packed& k) {
    const int width = s.right - s.left, wanted = s.bottom - s.top, pixel = rows.pixel(), bytes = 3 * width;
    grow(table_, k.table_bytes(x_.count, x_.stride));
    uint8_t* table = align(table_) - kOffset;
    if (!k.prepare(x_.view(), pixel, table)) return false;
    const int quads = (y_.most + 3) / 4;
    weights_.resize(static_cast<size_t>(wanted) * static_cast<size_t>(quads) * 3);
    int32_t(*weights)[3] = reinterpret_cast<int32_t(*)[3]>(weights_.data());
    k.weights(y_.view(), weights);
    const size_t pitch = pitch_of(width);
    const int slots = ring_size(y_.most);
    mask_ = slots - 1;
    grow(ring_, pitch * static_cast<size_t>(slots));
    grow(sum_, pitch);
    pointers_.resize(static_cast<size_t>(quads) * 4);
    const size_t plane = static_cast<size_t>(width) * static_cast<size_t>(wanted);
    int have = 0;
    for (int o = 0; o < wanted; o++) {
        const int first = y_.start[static_cast<size_t>(o)], n = y_.length[static_cast<size_t>(o)];
        for (; have < first + n; have++) {
            const uint8_t* src = rows.next_as_it_is(align(row_));
            if (have >= first) k.horizontal(src, ring(have, pitch), pixel, table);
        }
        for (int i = 0; i < 4 * quads; i++) pointers_[static_cast<size_t>(i)] = ring(first + (i < n ? i : n - 1), pitch);
        k.vertical(pointers_.data(), weights + static_cast<size_t>(o) * static_cast<size_t>(quads), quads, align(sum_), bytes);
        const size_t at = static_cast<size_t>(width) * static_cast<size_t>(o);
        if (t.channels_last)
            std::memcpy(t.data + 3 * at, align(sum_), static_cast<size_t>(bytes));
        else
            k.planes(align(sum_), t.data + at, t.data + plane + at, t.data + 2 * plane + at, width);
    }
    return true;
}

void Resizer::vertical_first(Rows& rows, const Shape& s, const Target& t, const Kernels& k) {
    const size_t pitch = pitch_of(s.width);
    const int bytes = (s.width * 4 + 15) & ~15, wanted = s.bottom - s.top;
    const int slots = ring_size(y_.view().most);
    mask_ = slots - 1;
    grow(ring_, pitch * static_cast<size_t>(slots));
    grow(sum_, pitch);
    pointers_.resize(static_cast<size_t>(y_.stride) + 2);
    int have = 0;
    for (int o = 0; o < wanted; o++) {
        const int end = y_.start[static_cast<size_t>(o)] + y_.length[static_cast<size_t>(o)];
        for (; have < end; have++) {
            uint8_t* slot = ring(have, pitch);
            const uint8_t* src = rows.next(slot);
            if (src != slot) std::memcpy(slot, src, static_cast<size_t>(s.width) * 4);
        }
        const uint8_t* summed = down(o, pitch, bytes, k);
        across(summed, align(row_), s, k);
        store(align(row_), o, s, t, k);
    }
}

void Resizer::store(const uint8_t* row, int y, const Shape& s, const Target& t, const Kernels& k) const {
    const int width = s.right - s.left;
    const size_t plane = static_cast<size_t>(width) * static_cast<size_t>(s.bottom - s.top);
    const size_t at = static_cast<size_t>(width) * static_cast<size_t>(y);
    if (t.channels == 1) {
        for (int x = 0; x < width; x++) t.data[at + static_cast<size_t>(x)] = row[4 * x];
    } else if (t.channels_last) {
        uint8_t* dst = t.data + 3 * at;
        for (int x = 0; x < width; x++) std::memcpy(dst + 3 * x, row + 4 * x, 3);
    } else {
        k.planes(row, t.data + at, t.data + plane + at, t.data + 2 * plane + at, width);
    }
}

}  // namespace fastload
