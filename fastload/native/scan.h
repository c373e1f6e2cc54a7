// Which JPEG files may take the short way: those on which stopping early cannot hide an error that Pillow would raise.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fastload {

struct Header {
    int width = 0, height = 0, components = 0;
    int max_h = 1, max_v = 1;           // largest sampling factors
    int quantisation[3] = {0, 0, 0};    // table numbers of the components
    bool ask_pillow = false;            // it has segments that Pillow's header reader may raise on: let it read them first
    const char* refused = nullptr;      // why this file is Pillow's, or nullptr
};

// Walk the markers and the whole scan. Accepted: one SOF0 or SOF1 of 8 bits with 1 or 3 components, one scan that holds all
// of them, every 0xFF in it followed by 0x00 or a restart marker, and EOI at its end. Never reads past `size`.
// Without `whole_scan` only the headers are read: enough to know the size, not to decode.
Header scan_jpeg(const uint8_t* data, size_t size, bool whole_scan = true);

}  // namespace fastload
