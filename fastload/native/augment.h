// Batch transforms on the CPU: uint8 or float images through perspective maps, lighting and normalisation in one call.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastload {

enum class Pad : int { kZeros = 0, kBorder = 1, kReflection = 2 };

// One resampling of an image. `maps`: per image nine doubles, row by row, that take a place (x, y, 1) of the output, in pixels
// from the centre of its first, to a place of the input; the third row's value is what the others are divided by.
struct Stage {
    int left, top, width, height;  // what of the input is used; the first stage crops by it, the others get it whole
    int pool_width, pool_height;   // the input is averaged down to this size first; 0 where it is not
    int out_width, out_height;
    Pad pad;
    bool align_corners;  // where the reflection turns: at the centres of the outer pixels, or at their edges
    const double* maps;
};

// What happens to each value at the end: y = 1 / (1 + exp(-(a logit(x) + b))), then (y - mean) / deviation.
struct Tone {
    const double* light;     // a and b for each image, or nullptr
    const float* mean;       // for each channel, or nullptr
    const float* deviation;  // for each channel, or nullptr
};

struct Batch {
    const uint8_t* bytes;  // [images, channels, height, width], contiguous; exactly one of the two is given
    const float* floats;
    int images, channels, height, width;
    float divisor;  // of the bytes
    float* out;     // [images, channels, out height, out width], contiguous
};

// Where a row of output pixels comes from: the pixel up and to the left in the padded picture, and how far beyond it.
struct Places {
    std::vector<double> across, along;
    std::vector<int32_t> first;
    std::vector<float> right, down;
    void fit(size_t width);
};

constexpr int kLanes = 4;   // channels side by side in one pixel of a picture; unused ones are zero
constexpr int kBefore = 1;  // pixels of zeros left and above, for places up to one pixel outside
constexpr int kAround = 3;  // and with those right and below

// The loops that are worth an instruction set of their own; all of them give equal results but for contraction of products.
struct RowKernels {
    const char* name;
    void (*divide)(const uint8_t* src, float* dst, int n, float divisor);
    // n values of each of `lanes` planes, `plane` apart, divided, side by side; the lanes left over are zero.
    void (*open_bytes)(const uint8_t* src, size_t plane, int lanes, float* dst, int n, float divisor);
    void (*open_floats)(const float* src, size_t plane, int lanes, float* dst, int n);
    // Where row y of a stage comes from, in an input of `width` by `height` pixels whose padded rows are `stride` pixels apart.
    void (*place)(const double* map, int y, int n, int width, int height, int stride, Pad pad, bool align_corners, Places& places);
    void (*gather)(const float* picture, int stride, const Places& places, float* dst, int n);  // dst: n pixels of kLanes
    void (*add)(const float* row, float* sums, int n);
    void (*average)(const float* sums, const int32_t* starts, const int32_t* ends, int rows, float* dst, int n);
    void (*apart)(const float* src, int lane, float* dst, int n);  // one channel of n pixels
    void (*light)(float* values, int n, float a, float b);
    void (*normalise)(float* values, int n, float mean, float deviation);
};

const RowKernels& row_kernels(const char* name);  // by the name of the resize kernels in use

void augment(const Batch& batch, const std::vector<Stage>& stages, const Tone& tone, int threads, const RowKernels& kernels);

extern const RowKernels portable_rows;
#if defined(__x86_64__)
extern const RowKernels avx2_rows, avx512_rows;
#endif

}  // namespace fastload
