// The JPEG library that Pillow itself has loaded, by its function pointers: decoding with it is exact by construction.
#pragma once
#include <cstddef>
#include <cstdio>
#include <jpeglib.h>

namespace fastload {

struct JpegApi {
    decltype(&jpeg_std_error) std_error = nullptr;
    decltype(&jpeg_CreateDecompress) create = nullptr;
    decltype(&jpeg_destroy_decompress) destroy = nullptr;
    decltype(&jpeg_abort_decompress) abort = nullptr;
    decltype(&jpeg_read_header) read_header = nullptr;
    decltype(&jpeg_start_decompress) start = nullptr;
    decltype(&jpeg_read_scanlines) read_scanlines = nullptr;
    decltype(&jpeg_skip_scanlines) skip_scanlines = nullptr;
    decltype(&jpeg_crop_scanline) crop_scanline = nullptr;
    decltype(&jpeg_resync_to_restart) resync_to_restart = nullptr;
};

// Resolve every function through the shared object at `path` and its dependencies; empty on success, else what is missing.
const char* load_jpeg_api(const char* path);
const JpegApi& jpeg_api();

}  // namespace fastload
