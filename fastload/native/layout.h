// How a crop lies in its source, and what surrounds it.
#pragma once

namespace fastload {

struct Crop {
    int left, top, width, height;
};

// With neither a turn nor padding, rows stream from the decoder.
struct Layout {
    bool swap = false, flip_x = false, flip_y = false;  // source x = flip_x ? W-1-u : u, with u = swap ? y : x; y likewise
    int left = 0, top = 0, right = 0, bottom = 0;       // padding around the crop, pixels
    int mode = 0;                                       // 0 zeros, 1 border, 2 reflection (as numpy's reflect)

    bool plain() const { return !swap && !flip_x && !flip_y && left + top + right + bottom == 0; }
};

// Where position `i` of a padded side of `n` pixels comes from, or -1 for zero. Reflection repeats for pads larger than the side.
inline int padded_from(int i, int n, int mode) {
    if (i >= 0 && i < n) return i;
    if (mode == 0) return -1;
    if (mode == 1 || n == 1) return i < 0 ? 0 : n - 1;
    const int period = 2 * (n - 1);
    int m = i % period;
    if (m < 0) m += period;
    return m < n ? m : period - m;
}

}  // namespace fastload
