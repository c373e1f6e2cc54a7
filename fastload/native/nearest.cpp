#include "nearest.h"

#include <cstring>
#include <vector>

namespace fastload {
namespace {

constexpr ptrdiff_t kZero = -1;

// One axis of the turned image.
struct Axis {
    int size, out;               // of the padded crop, before and after the resize
    int first, last;             // outputs that are wanted
    int pad, crop, start, mode;  // padding before the crop, the crop's own size, where it starts
    bool mirrored;
    int side;                    // of the whole image
    bool flipped;
    ptrdiff_t step;              // bytes from one position to the next
};

// Byte offset of each wanted output's source. Positions as Pillow adds them up (Geometry.c, ImagingScaleAffine): the first at
// half a step, each next one a step further, cut down to whole pixels.
std::vector<ptrdiff_t> table(const Axis& a) {
    std::vector<ptrdiff_t> found(static_cast<size_t>(a.last - a.first));
    const double step = static_cast<double>(a.size) / a.out;
    double at = step * 0.5;
    for (int i = 0; i < a.last; i++, at += step) {
        if (i < a.first) continue;
        const int resized = static_cast<int>(at), p = a.mirrored ? a.size - 1 - resized : resized;
        const int inside = resized < a.size ? padded_from(p - a.pad, a.crop, a.mode) : -1;
        const int turned = a.start + inside;
        found[static_cast<size_t>(i - a.first)] = inside < 0 ? kZero : a.step * (a.flipped ? a.side - 1 - turned : turned);
    }
    return found;
}

}  // namespace

void gather(const Labels& source, const Crop& crop, const Layout& l, const Shape& s, uint8_t* out) {
    const ptrdiff_t line = static_cast<ptrdiff_t>(source.line);
    const bool x_runs_down = l.swap;
    const std::vector<ptrdiff_t> columns =
        table({s.width, s.out_width, s.left, s.right, l.left, crop.width, crop.left, l.mode, s.mirrored,
               x_runs_down ? source.height : source.width, x_runs_down ? l.flip_y : l.flip_x, x_runs_down ? line : 1});
    const std::vector<ptrdiff_t> rows =
        table({s.height, s.out_height, s.top, s.bottom, l.top, crop.height, crop.top, l.mode, false,
               x_runs_down ? source.width : source.height, x_runs_down ? l.flip_x : l.flip_y, x_runs_down ? 1 : line});
    const size_t width = columns.size();
    for (const ptrdiff_t row : rows) {
        if (row == kZero)
            std::memset(out, 0, width);
        else
            for (size_t x = 0; x < width; x++) out[x] = columns[x] == kZero ? 0 : source.data[row + columns[x]];
        out += width;
    }
}

}  // namespace fastload
