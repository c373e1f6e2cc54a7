// Random batches, stages and maps through the fused batch transforms under the sanitizers, with each table of row kernels.
#include "../../fastload/native/augment.h"

#include <cstdio>
#include <cstdlib>
#include <random>

using namespace fastload;

namespace {

std::mt19937 dice(1);
int within(int low, int high) { return low + static_cast<int>(dice() % static_cast<unsigned>(high - low + 1)); }
double real(double low, double high) { return low + (high - low) * (dice() / 4294967296.0); }

// Nine numbers a module.cpp would let through: depth above zero at the output's corners, everything else wild.
void make_map(double* m, int width, int height) {
    const double reach = within(0, 3) ? 1.0 : 1e6;
    for (int k = 0; k < 6; k++) m[k] = real(-3, 3) * (k % 3 == 2 ? 40 * reach : reach);
    m[6] = within(0, 1) ? 0.0 : real(-0.9, 2) / (2 * width);
    m[7] = within(0, 1) ? 0.0 : real(-0.9, 2) / (2 * height);
    m[8] = 1.0;
}

void one_case(const RowKernels& kernels) {
    Batch b{};
    b.images = within(1, 3);
    b.channels = within(1, 6);
    b.width = within(1, 40);
    b.height = within(1, 40);
    b.divisor = 255.0f;
    const size_t values = static_cast<size_t>(b.images) * b.channels * b.width * b.height;
    // Of exactly their size: one value too far is seen.
    std::vector<uint8_t> bytes(values);
    std::vector<float> floats(values);
    for (auto& v : bytes) v = static_cast<uint8_t>(dice());
    for (auto& v : floats) v = static_cast<float>(real(0, 1));
    if (within(0, 1))
        b.bytes = bytes.data();
    else
        b.floats = floats.data();
    std::vector<Stage> stages(static_cast<size_t>(within(0, 3)));
    std::vector<std::vector<double>> maps;
    int width = b.width, height = b.height;
    for (Stage& s : stages) {
        s = {0, 0, width, height, 0, 0, within(1, 50), within(1, 50), static_cast<Pad>(within(0, 2)), within(0, 1) != 0, nullptr};
        if (&s == &stages.front()) {
            s.left = within(0, width - 1);
            s.top = within(0, height - 1);
            s.width = within(1, width - s.left);
            s.height = within(1, height - s.top);
        }
        if (within(0, 2) == 0) {
            s.pool_width = within(1, s.width);
            s.pool_height = within(1, s.height);
        }
        maps.emplace_back(static_cast<size_t>(9 * b.images));
        for (int i = 0; i < b.images; i++) make_map(maps.back().data() + 9 * i, s.out_width, s.out_height);
        width = s.out_width;
        height = s.out_height;
    }
    for (size_t k = 0; k < stages.size(); k++) stages[k].maps = maps[k].data();
    std::vector<float> out(static_cast<size_t>(b.images) * b.channels * width * height), norm(static_cast<size_t>(b.channels), 0.5f);
    std::vector<double> light(static_cast<size_t>(2 * b.images));
    for (auto& v : light) v = real(-9, 9);
    b.out = out.data();
    const bool toned = within(0, 1) != 0;
    augment(b, stages, {within(0, 1) ? light.data() : nullptr, toned ? norm.data() : nullptr, toned ? norm.data() : nullptr},
            within(1, 3), kernels);
    for (const float v : out)
        if (!(v > -1e4f && v < 1e4f)) {
            std::printf("%s gave %f\n", kernels.name, static_cast<double>(v));
            std::abort();
        }
}

}  // namespace

int main(int, char** arguments) {
    const int cases = std::atoi(arguments[1]);
    std::printf("%d cases:", cases);
    for (const char* name : {"portable", "avx2", "avx512"}) {
        const RowKernels& kernels = row_kernels(name);
        std::printf(" %s", kernels.name);
        for (int i = 0; i < cases; i++) one_case(kernels);
    }
    std::printf("\n");
    return 0;
}
