// Reads JPEG markers (ITU-T T.81, annex B) far enough to know that a file is ordinary.
#include "scan.h"

#include <cstring>

namespace fastload {
namespace {

int be16(const uint8_t* p) { return p[0] << 8 | p[1]; }

Header refuse(const char* why) {
    Header h;
    h.refused = why;
    return h;
}

bool starts(const uint8_t* body, int length, const char* text, int n) {
    return length >= n && std::memcmp(body, text, static_cast<size_t>(n)) == 0;
}

// Whether Photoshop's blocks (8BIM, code, padded name, 32-bit size, padded data) are whole, so that Pillow has nothing to raise on.
bool plain_resources(const uint8_t* body, int length) {
    if (!starts(body, length, "Photoshop 3.0\0", 14)) return true;
    const uint64_t end = static_cast<uint64_t>(length);
    uint64_t at = 14;
    while (at + 4 <= end && std::memcmp(body + at, "8BIM", 4) == 0) {
        if (at + 7 > end) return false;
        const int code = be16(body + at + 4);
        at += 7 + static_cast<uint64_t>(body[at + 6]);
        at += at & 1;
        if (at + 4 > end) return false;
        const uint64_t size = static_cast<uint64_t>(be16(body + at)) << 16 | static_cast<uint64_t>(be16(body + at + 2));
        at += 4 + size;
        if (at > end || (code == 0x03ED && size < 14)) return false;
        at += at & 1;
    }
    return true;
}

// What Pillow's header reader takes from application segments, as far as it may raise on them.
struct Segments {
    bool density = false, exif = false;

    const char* see(int marker, const uint8_t* body, int length, Header& h) {
        if (marker == 0xE0 && starts(body, length, "JFIF", 4)) {
            if (length < 12) h.ask_pillow = true;
            density = density || (length >= 12 && (body[7] == 1 || body[7] == 2));
        }
        if (marker == 0xE1 && starts(body, length, "Exif\0", 6)) exif = true;
        if (marker == 0xE2 && starts(body, length, "MPF", 4)) return "multi-picture file";
        if (marker == 0xE2 && starts(body, length, "ICC_PROFILE", 12) && length < 14) h.ask_pillow = true;
        if (marker == 0xED && !plain_resources(body, length)) h.ask_pillow = true;
        if (marker == 0xEE && starts(body, length, "Adobe", 5) && length < 12) h.ask_pillow = true;
        return nullptr;
    }
};

// Which tables the file itself defines. A decompressor that is used again still holds those of the last image, so a file that
// lacks one must not reach it.
struct Tables {
    unsigned quantisation = 0, huffman[2] = {0, 0};  // bits by table number; Huffman: 0 DC, 1 AC

    bool read_quantisation(const uint8_t* p, int length) {
        while (length > 0) {
            const int need = 1 + (p[0] >> 4 ? 128 : 64);
            if (p[0] >> 4 > 1 || (p[0] & 15) > 3 || length < need) return false;
            quantisation |= 1u << (p[0] & 15);
            p += need;
            length -= need;
        }
        return true;
    }

    bool read_huffman(const uint8_t* p, int length) {
        while (length > 0) {
            if (length < 17 || p[0] >> 4 > 1 || (p[0] & 15) > 3) return false;
            int need = 17;
            for (int i = 1; i <= 16; i++) need += p[i];
            if (need > 17 + 256 || length < need) return false;
            huffman[p[0] >> 4] |= 1u << (p[0] & 15);
            p += need;
            length -= need;
        }
        return true;
    }

    // Whether a scan header (one component after the other: id, table numbers) and the frame name defined tables only.
    bool cover(const uint8_t* scan, const Header& h) const {
        for (int c = 0; c < h.components; c++) {
            const int dc = scan[2 + 2 * c] >> 4, ac = scan[2 + 2 * c] & 15, q = h.quantisation[c];
            if (dc > 3 || ac > 3 || q > 3) return false;
            if (!(huffman[0] >> dc & 1) || !(huffman[1] >> ac & 1) || !(quantisation >> q & 1)) return false;
        }
        return true;
    }
};

bool read_frame(const uint8_t* body, int length, Header& h) {
    if (length < 6 || body[0] != 8) return false;
    h.height = be16(body + 1);
    h.width = be16(body + 3);
    h.components = body[5];
    if (h.width == 0 || h.height == 0 || (h.components != 1 && h.components != 3)) return false;
    if (length != 6 + 3 * h.components) return false;
    for (int c = 0; c < h.components; c++) {
        const int hs = body[7 + 3 * c] >> 4, vs = body[7 + 3 * c] & 15;
        if (hs < 1 || hs > 4 || vs < 1 || vs > 4) return false;
        if (hs > h.max_h) h.max_h = hs;
        if (vs > h.max_v) h.max_v = vs;
        h.quantisation[c] = body[8 + 3 * c];
    }
    return true;
}

}  // namespace

Header scan_jpeg(const uint8_t* data, size_t size) {
    if (size < 4 || data[0] != 0xFF || data[1] != 0xD8) return refuse("no JPEG");
    Header h;
    Segments segments;
    Tables tables;
    size_t at = 2;
    while (true) {
        if (at + 4 > size) return refuse("truncated header");
        if (data[at] != 0xFF) return refuse("junk between segments");
        const int marker = data[at + 1];
        if (marker == 0xFF || marker < 0xC0 || (marker >= 0xD0 && marker <= 0xD9)) return refuse("odd marker");
        const int length = be16(data + at + 2) - 2;
        const uint8_t* body = data + at + 4;
        if (length < 0 || at + 4 + static_cast<size_t>(length) > size) return refuse("truncated header");
        at += 4 + static_cast<size_t>(length);
        if (marker == 0xDA) {
            if (h.components == 0 || length != 4 + 2 * h.components || body[0] != h.components) return refuse("several scans");
            if (body[length - 3] != 0 || body[length - 2] != 63 || body[length - 1] != 0) return refuse("progressive scan");
            if (!tables.cover(body, h)) return refuse("a table is missing");
            if (segments.exif && !segments.density) h.ask_pillow = true;
            h.scan = at;
            return h;
        }
        if (marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC) {
            if (marker > 0xC1) return refuse("not baseline");
            if (h.components != 0 || !read_frame(body, length, h)) return refuse("odd frame");
        } else if (marker == 0xC8 || marker == 0xCC || marker == 0xDC || marker == 0xDE || marker == 0xDF || marker >= 0xF0) {
            if (marker != 0xFE) return refuse("odd marker");
        } else if (marker == 0xDB) {
            if (!tables.read_quantisation(body, length)) return refuse("odd quantisation table");
        } else if (marker == 0xC4) {
            if (!tables.read_huffman(body, length)) return refuse("odd Huffman table");
        } else if (const char* why = segments.see(marker, body, length, h)) {
            return refuse(why);
        }
    }
}

}  // namespace fastload
