// Which JPEG files may take the short way: those on which stopping early cannot hide an error that Pillow would raise.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fastload {

struct Header {
    int width = 0, height = 0, components = 0;
    int max_h = 1, max_v = 1;           // largest sampling factors
    int quantisation[3] = {0, 0, 0};    // table numbers of the components
    size_t scan = 0;                    // where the entropy-coded bytes begin
    bool ask_pillow = false;            // it has segments that Pillow's header reader may raise on: let it read them first
    const char* refused = nullptr;      // why this file is Pillow's, or nullptr
};

// Walk the markers up to the scan. Accepted: one SOF0 or SOF1 of 8 bits with 1 or 3 components, one scan that holds all of
// them. Never reads past `size`. Whether the scan itself is whole, ScanBytes (huffman.h) finds.
Header scan_jpeg(const uint8_t* data, size_t size);

}  // namespace fastload
