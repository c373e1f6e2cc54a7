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

// A row of output places: four taps and their weights, structure of arrays. Kept by a thread, grown as needed.
struct Taps4 {
    std::vector<int32_t> first, right, down;
    std::vector<float> left_weight, right_weight, top_weight, bottom_weight;
    void fit(size_t width);
};

// The loops that are worth an instruction set of their own; all of them give equal results but for contraction of products.
struct RowKernels {
    const char* name;
    void (*unpack)(const uint8_t* src, float* dst, int n, float divisor);
    // Taps of row y of a stage, of an input `width` by `height` whose rows are `stride` apart.
    void (*place)(const double* map, int y, int n, int width, int height, int stride, Pad pad, bool align_corners, Taps4& taps);
    void (*gather)(const float* plane, const Taps4& taps, float* dst, int n);
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
