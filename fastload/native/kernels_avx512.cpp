// Kernels for x86-64 with AVX-512 (BW, VL).
#include "kernels_avx512.h"

namespace fastload {

const Kernels avx512_kernels = {"avx512", horizontal256, vertical, planes, spread, nullptr};

}  // namespace fastload
