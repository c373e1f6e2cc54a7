// For every processor.
#define FASTLOAD_ROWS portable_rows
#define FASTLOAD_ROWS_NAME "portable"
#include "augment_rows.h"
