// A batch through its stages: one image a thread at a time, in buffers that the thread keeps.
#include "augment.h"

#include <atomic>
#include <cstring>
#include <exception>
#include <thread>

namespace fastload {
namespace {

// Planes of one image; `at` may lie outside of `own` where nothing was copied.
struct Planes {
    std::vector<float> own;
    const float* at = nullptr;
    int width = 0, height = 0;
    float* fit(int channels, int w, int h) {
        own.resize(static_cast<size_t>(channels) * w * h);
        at = own.data();
        width = w;
        height = h;
        return own.data();
    }
};

struct Scratch {
    Planes now, next;
    Taps4 taps;
    std::vector<float> sums;
};

inline int window_start(int i, int in, int out) { return static_cast<int>(static_cast<int64_t>(i) * in / out); }
inline int window_end(int i, int in, int out) {
    return static_cast<int>((static_cast<int64_t>(i + 1) * in + out - 1) / out);
}

// torch's adaptive average: output i is the mean of inputs floor(i in / out) to ceil((i + 1) in / out).
void pool(const Planes& in, int channels, int w, int h, Planes& out, std::vector<float>& sums) {
    float* dst = out.fit(channels, w, h);
    sums.resize(static_cast<size_t>(in.width));
    for (int c = 0; c < channels; c++) {
        const float* plane = in.at + static_cast<size_t>(c) * in.width * in.height;
        for (int y = 0; y < h; y++) {
            const int y0 = window_start(y, in.height, h), y1 = window_end(y, in.height, h);
            std::memcpy(sums.data(), plane + static_cast<size_t>(y0) * in.width, sums.size() * sizeof(float));
            for (int k = y0 + 1; k < y1; k++) {
                const float* row = plane + static_cast<size_t>(k) * in.width;
                for (int x = 0; x < in.width; x++) sums[x] += row[x];
            }
            for (int x = 0; x < w; x++) {
                const int x0 = window_start(x, in.width, w), x1 = window_end(x, in.width, w);
                float sum = 0.0f;
                for (int k = x0; k < x1; k++) sum += sums[k];
                *dst++ = sum / static_cast<float>((x1 - x0) * (y1 - y0));
            }
        }
    }
}

void finish(float* row, int n, int image, int channel, const Tone& tone, const RowKernels& k) {
    if (tone.light != nullptr)
        k.light(row, n, static_cast<float>(tone.light[2 * image]), static_cast<float>(tone.light[2 * image + 1]));
    if (tone.mean != nullptr) k.normalise(row, n, tone.mean[channel], tone.deviation[channel]);
}

// The part of the image that the first stage uses, as floats.
void open(const Batch& b, int image, int left, int top, int width, int height, float* dst, const RowKernels& k) {
    for (int c = 0; c < b.channels; c++)
        for (int y = 0; y < height; y++, dst += width) {
            const size_t at = ((static_cast<size_t>(image) * b.channels + c) * b.height + top + y) * b.width + left;
            if (b.bytes != nullptr)
                k.unpack(b.bytes + at, dst, width, b.divisor);
            else
                std::memcpy(dst, b.floats + at, static_cast<size_t>(width) * sizeof(float));
        }
}

void resample(const Planes& in, int image, int channels, const Stage& s, float* out, Taps4& taps, const Tone* tone,
              const RowKernels& k) {
    const size_t plane = static_cast<size_t>(in.width) * in.height, out_plane = static_cast<size_t>(s.out_width) * s.out_height;
    taps.fit(static_cast<size_t>(s.out_width));
    for (int y = 0; y < s.out_height; y++) {
        k.place(s.maps + 9 * static_cast<size_t>(image), y, s.out_width, in.width, in.height, in.width, s.pad, s.align_corners,
                taps);
        for (int c = 0; c < channels; c++) {
            float* row = out + c * out_plane + static_cast<size_t>(y) * s.out_width;
            k.gather(in.at + c * plane, taps, row, s.out_width);
            if (tone != nullptr) finish(row, s.out_width, image, c, *tone, k);
        }
    }
}

void one_image(const Batch& b, int image, const std::vector<Stage>& stages, const Tone& tone, Scratch& s, const RowKernels& k) {
    if (stages.empty()) {
        const size_t plane = static_cast<size_t>(b.width) * b.height;
        float* out = b.out + static_cast<size_t>(image) * b.channels * plane;
        open(b, image, 0, 0, b.width, b.height, out, k);
        for (int c = 0; c < b.channels; c++)
            for (int y = 0; y < b.height; y++) finish(out + c * plane + static_cast<size_t>(y) * b.width, b.width, image, c, tone, k);
        return;
    }
    const Stage& first = stages.front();
    open(b, image, first.left, first.top, first.width, first.height, s.now.fit(b.channels, first.width, first.height), k);
    for (size_t i = 0; i < stages.size(); i++) {
        const Stage& stage = stages[i];
        if (stage.pool_width > 0) {
            pool(s.now, b.channels, stage.pool_width, stage.pool_height, s.next, s.sums);
            std::swap(s.now, s.next);
        }
        if (i + 1 == stages.size()) {
            const size_t size = static_cast<size_t>(b.channels) * stage.out_width * stage.out_height;
            resample(s.now, image, b.channels, stage, b.out + image * size, s.taps, &tone, k);
        } else {
            resample(s.now, image, b.channels, stage, s.next.fit(b.channels, stage.out_width, stage.out_height), s.taps, nullptr, k);
            std::swap(s.now, s.next);
        }
    }
}

}  // namespace

void Taps4::fit(size_t width) {
    for (auto* v : {&first, &right, &down}) v->resize(width);
    for (auto* v : {&left_weight, &right_weight, &top_weight, &bottom_weight}) v->resize(width);
}

const RowKernels& row_kernels(const char* name) {
#if defined(__x86_64__)
    if (std::strcmp(name, "avx512") == 0 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq"))
        return avx512_rows;
    if (std::strncmp(name, "avx", 3) == 0 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return avx2_rows;
#else
    (void)name;
#endif
    return portable_rows;
}

void augment(const Batch& batch, const std::vector<Stage>& stages, const Tone& tone, int threads, const RowKernels& kernels) {
    std::atomic<int> next{0};
    std::atomic<bool> failed{false};
    std::exception_ptr fault;
    auto work = [&] {
        try {
            Scratch scratch;
            for (int i; !failed && (i = next.fetch_add(1)) < batch.images;) one_image(batch, i, stages, tone, scratch, kernels);
        } catch (...) {
            if (!failed.exchange(true)) fault = std::current_exception();
        }
    };
    std::vector<std::thread> others;
    try {
        for (int t = 1; t < threads && t < batch.images; t++) others.emplace_back(work);
    } catch (...) {  // no more threads to be had: those that there are do the work
    }
    work();
    for (std::thread& t : others) t.join();
    if (fault) std::rethrow_exception(fault);
}

}  // namespace fastload
