// Finds libjpeg's functions in the process: dlsym on Pillow's extension module searches the libraries it was linked with.
#include "jpeg_api.h"

#include <dlfcn.h>

namespace fastload {
namespace {
JpegApi api;

template <typename F>
bool resolve(void* library, const char* name, F& function) {
    function = reinterpret_cast<F>(dlsym(library, name));
    return function != nullptr;
}
}  // namespace

const JpegApi& jpeg_api() { return api; }

const char* load_jpeg_api(const char* path) {
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return "the library can't be opened";
    JpegApi found;
    if (!resolve(library, "jpeg_std_error", found.std_error)) return "jpeg_std_error";
    if (!resolve(library, "jpeg_CreateDecompress", found.create)) return "jpeg_CreateDecompress";
    if (!resolve(library, "jpeg_destroy_decompress", found.destroy)) return "jpeg_destroy_decompress";
    if (!resolve(library, "jpeg_abort_decompress", found.abort)) return "jpeg_abort_decompress";
    if (!resolve(library, "jpeg_read_header", found.read_header)) return "jpeg_read_header";
    if (!resolve(library, "jpeg_start_decompress", found.start)) return "jpeg_start_decompress";
    if (!resolve(library, "jpeg_read_scanlines", found.read_scanlines)) return "jpeg_read_scanlines";
    if (!resolve(library, "jpeg_skip_scanlines", found.skip_scanlines)) return "jpeg_skip_scanlines";
    if (!resolve(library, "jpeg_crop_scanline", found.crop_scanline)) return "jpeg_crop_scanline";
    if (!resolve(library, "jpeg_resync_to_restart", found.resync_to_restart)) return "jpeg_resync_to_restart";
    api = found;
    return "";
}

}  // namespace fastload
