// Pillow's 8 bit bilinear resize of a crop, fed row by row, written straight into a batch row.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels.h"
#include "packed.h"

namespace fastload {

// Gives the rows of the crop from top to bottom, each once.
class Rows {
  public:
    // Write or point to the next row as RGBX; `buffer` has room for it and 192 bytes more, which must be readable behind any row.
    virtual const uint8_t* next(uint8_t* buffer) = 0;
    // Bytes a pixel of what `next_as_it_is` gives: 3 where the rows lie in memory as RGB, else it is `next`.
    virtual int pixel() const { return 4; }
    virtual const uint8_t* next_as_it_is(uint8_t* buffer) { return next(buffer); }

  protected:
    ~Rows() = default;  // trivial, so that a longjmp out of libjpeg may leave the scope
};

// Part of a side that is resized, in rows or columns as given; it may begin and end within one.
struct Span {
    double from = 0.0, extent = 0.0;  // extent 0: the whole side
};

struct Shape {
    int width, height;              // of the crop
    int out_width, out_height;      // of the whole resized image
    int left, top, right, bottom;   // the part of it that is wanted
    bool mirrored;                  // the crop is read right to left
    bool pillow13;                  // Pillow 13 and later may do the vertical pass first
    Span across = {}, down = {};

    bool keeps_width() const { return width == out_width && across.extent == 0.0; }
    bool keeps_height() const { return height == out_height && down.extent == 0.0; }
};

struct Target {
    uint8_t* data;                  // the part that is wanted, contiguous
    int channels;                   // 3 or 1
    bool channels_last;             // [H, W, C] instead of [C, H, W]
};

// Keeps its buffers between images; one per thread.
class Resizer {
  public:
    void run(Rows& rows, const Shape& shape, const Target& target, const Kernels& kernels);
    size_t bytes() const;

  private:
    bool packed(Rows& rows, const Shape& s, const Target& t, const Packed& k);
    void horizontal_first(Rows& rows, const Shape& s, const Target& t, const Kernels& k);
    void vertical_first(Rows& rows, const Shape& s, const Target& t, const Kernels& k);
    void across(const uint8_t* src, uint8_t* dst, const Shape& s, const Kernels& k) const;
    const uint8_t* down(int output, size_t pitch, int bytes, const Kernels& k);
    void store(const uint8_t* row, int y, const Shape& s, const Target& t, const Kernels& k) const;
    uint8_t* ring(int y, size_t pitch) { return align(ring_) + static_cast<size_t>(y & mask_) * pitch; }
    static uint8_t* align(std::vector<uint8_t>& v);

    Taps x_, y_;
    std::vector<uint8_t> ring_, row_, sum_, table_;
    std::vector<int32_t> weights_;
    std::vector<const uint8_t*> pointers_;
    int mask_ = 0;
};

}  // namespace fastload
