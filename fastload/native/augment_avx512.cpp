// For processors with AVX-512: CMakeLists.txt gives this file its flags.
#define FASTLOAD_ROWS avx512_rows
#define FASTLOAD_ROWS_NAME "avx512"
#include "augment_rows.h"
