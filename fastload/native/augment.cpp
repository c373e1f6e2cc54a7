// A batch through its stages: one image a thread at a time, in buffers that the thread keeps.
#include "augment.h"

#include <atomic>
#include <cstring>
#include <exception>
#include <thread>
#include <utility>

namespace fastload {
namespace {

// Up to kLanes channels of an image, pixel by pixel, with a border of zeros.
struct Picture {
    std::vector<float> pixels;
    int width = 0, height = 0, stride = 0;
    void fit(int w, int h) {
        width = w;
        height = h;
        stride = w + kAround;
        pixels.resize(static_cast<size_t>(stride) * (h + kAround) * kLanes);
        const size_t line = static_cast<size_t>(stride) * kLanes * sizeof(float);
        std::memset(row(-kBefore) - kBefore * kLanes, 0, line);
        for (int y = 0; y < h; y++) {
            std::memset(row(y) - kBefore * kLanes, 0, kBefore * kLanes * sizeof(float));
            std::memset(row(y) + static_cast<size_t>(w) * kLanes, 0, (kAround - kBefore) * kLanes * sizeof(float));
        }
        std::memset(row(h) - kBefore * kLanes, 0, (kAround - kBefore) * line);
    }
    float* row(int y) { return pixels.data() + (static_cast<size_t>(y + kBefore) * stride + kBefore) * kLanes; }
    const float* row(int y) const { return const_cast<Picture*>(this)->row(y); }
};

struct Scratch {
    Picture now, next;
    Places places;
    std::vector<float> line;
    std::vector<int32_t> starts, ends;
};

int start(int i, int in, int out) { return static_cast<int>(static_cast<int64_t>(i) * in / out); }
int end(int i, int in, int out) { return static_cast<int>((static_cast<int64_t>(i + 1) * in + out - 1) / out); }

// torch's adaptive average: output i is the mean of inputs floor(i in / out) to ceil((i + 1) in / out).
void pool(const Picture& in, int w, int h, Picture& out, Scratch& s, const RowKernels& k) {
    out.fit(w, h);
    const int values = in.width * kLanes;
    s.line.resize(static_cast<size_t>(values));
    s.starts.resize(static_cast<size_t>(w));
    s.ends.resize(static_cast<size_t>(w));
    for (int x = 0; x < w; x++) {
        s.starts[x] = start(x, in.width, w);
        s.ends[x] = end(x, in.width, w);
    }
    for (int y = 0; y < h; y++) {
        const int from = start(y, in.height, h), to = end(y, in.height, h);
        std::memcpy(s.line.data(), in.row(from), s.line.size() * sizeof(float));
        for (int r = from + 1; r < to; r++) k.add(in.row(r), s.line.data(), values);
        k.average(s.line.data(), s.starts.data(), s.ends.data(), to - from, out.row(y), w);
    }
}

// Some channels of one image, on their way to `out`.
struct Part {
    int image, channel, lanes;
};

void finish(float* row, int n, const Part& part, int lane, const Tone& tone, const RowKernels& k) {
    if (tone.light != nullptr)
        k.light(row, n, static_cast<float>(tone.light[2 * part.image]), static_cast<float>(tone.light[2 * part.image + 1]));
    if (tone.mean != nullptr) k.normalise(row, n, tone.mean[part.channel + lane], tone.deviation[part.channel + lane]);
}

size_t plane_of(int width, int height) { return static_cast<size_t>(width) * height; }

void open(const Batch& b, const Part& part, const Stage& first, Picture& to, const RowKernels& k) {
    to.fit(first.width, first.height);
    const size_t plane = plane_of(b.width, b.height);
    for (int y = 0; y < first.height; y++) {
        const size_t at = (static_cast<size_t>(part.image) * b.channels + part.channel) * plane +
                          static_cast<size_t>(first.top + y) * b.width + first.left;
        if (b.bytes != nullptr)
            k.open_bytes(b.bytes + at, plane, part.lanes, to.row(y), first.width, b.divisor);
        else
            k.open_floats(b.floats + at, plane, part.lanes, to.row(y), first.width);
    }
}

const double* map_of(const Stage& s, int image) { return s.maps + 9 * static_cast<size_t>(image); }

void places_of(const Picture& in, const Stage& s, int image, int y, Places& places, const RowKernels& k) {
    k.place(map_of(s, image), y, s.out_width, in.width, in.height, in.stride, s.pad, s.align_corners, places);
}

// The last stage: each row apart into its channels, through the tone, into the output.
void last(const Batch& b, const Part& part, const Stage& stage, const Tone& tone, Scratch& s, const RowKernels& k) {
    const size_t plane = plane_of(stage.out_width, stage.out_height);
    float* out = b.out + (static_cast<size_t>(part.image) * b.channels + part.channel) * plane;
    s.line.resize(static_cast<size_t>(stage.out_width) * kLanes);
    for (int y = 0; y < stage.out_height; y++) {
        places_of(s.now, stage, part.image, y, s.places, k);
        k.gather(s.now.pixels.data(), s.now.stride, s.places, s.line.data(), stage.out_width);
        for (int lane = 0; lane < part.lanes; lane++) {
            float* row = out + lane * plane + static_cast<size_t>(y) * stage.out_width;
            k.apart(s.line.data(), lane, row, stage.out_width);
            finish(row, stage.out_width, part, lane, tone, k);
        }
    }
}

void through(const Batch& b, const Part& part, const std::vector<Stage>& stages, const Tone& tone, Scratch& s,
             const RowKernels& k) {
    open(b, part, stages.front(), s.now, k);
    for (const Stage& stage : stages) {
        s.places.fit(static_cast<size_t>(stage.out_width));
        if (stage.pool_width > 0) {
            pool(s.now, stage.pool_width, stage.pool_height, s.next, s, k);
            std::swap(s.now, s.next);
        }
        if (&stage == &stages.back()) {
            last(b, part, stage, tone, s, k);
            return;
        }
        s.next.fit(stage.out_width, stage.out_height);
        for (int y = 0; y < stage.out_height; y++) {
            places_of(s.now, stage, part.image, y, s.places, k);
            k.gather(s.now.pixels.data(), s.now.stride, s.places, s.next.row(y), stage.out_width);
        }
        std::swap(s.now, s.next);
    }
}

// Nothing moves: each value by itself.
void in_place(const Batch& b, int image, const Tone& tone, const RowKernels& k) {
    const size_t plane = plane_of(b.width, b.height);
    for (int c = 0; c < b.channels; c++) {
        const Part part = {image, c, 1};
        const size_t at = (static_cast<size_t>(image) * b.channels + c) * plane;
        for (int y = 0; y < b.height; y++) {
            float* row = b.out + at + static_cast<size_t>(y) * b.width;
            if (b.bytes != nullptr)
                k.divide(b.bytes + at + static_cast<size_t>(y) * b.width, row, b.width, b.divisor);
            else
                std::memcpy(row, b.floats + at + static_cast<size_t>(y) * b.width, static_cast<size_t>(b.width) * sizeof(float));
            finish(row, b.width, part, 0, tone, k);
        }
    }
}

void one_image(const Batch& b, int image, const std::vector<Stage>& stages, const Tone& tone, Scratch& s, const RowKernels& k) {
    if (stages.empty()) {
        in_place(b, image, tone, k);
        return;
    }
    for (int c = 0; c < b.channels; c += kLanes)
        through(b, {image, c, b.channels - c < kLanes ? b.channels - c : kLanes}, stages, tone, s, k);
}

}  // namespace

void Places::fit(size_t width) {
    across.resize(width);
    along.resize(width);
    first.resize(width);
    right.resize(width);
    down.resize(width);
}

const RowKernels& row_kernels(const char* name) {
#if defined(__x86_64__)
    if (std::strncmp(name, "avx512", 6) == 0 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq"))
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
