// For processors with AVX2 and FMA: CMakeLists.txt gives this file its flags.
#define FASTLOAD_ROWS avx2_rows
#define FASTLOAD_ROWS_NAME "avx2"
#include "augment_rows.h"
