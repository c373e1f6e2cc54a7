// libjpeg is told what is not needed: rows above the crop are skipped, columns beside it cropped, the rest never asked for.
// Errors longjmp back into the function that called libjpeg; nothing with a destructor lives between the two.
#include "decode.h"

#include <csetjmp>
#include <cstring>

#include "huffman.h"
#include "jpeg_api.h"

namespace fastload {
namespace {

struct Errors {
    jpeg_error_mgr manager;  // first, so that libjpeg's pointer to it is one to this
    jmp_buf back;
};

void on_error(j_common_ptr info) { longjmp(reinterpret_cast<Errors*>(info->err)->back, 1); }
void on_message(j_common_ptr, int) {}
void on_output(j_common_ptr) {}

// The whole file is in memory; at its end libjpeg gets an error, not a made-up EOI: such files do not pass the scan.
void no_init(j_decompress_ptr) {}
boolean no_more(j_decompress_ptr info) {
    on_error(reinterpret_cast<j_common_ptr>(info));
    return FALSE;
}
void skip(j_decompress_ptr info, long n) {
    if (n <= 0) return;
    jpeg_source_mgr* source = info->src;
    if (static_cast<size_t>(n) > source->bytes_in_buffer) on_error(reinterpret_cast<j_common_ptr>(info));
    source->next_input_byte += n;
    source->bytes_in_buffer -= static_cast<size_t>(n);
}

// A decompressor that is reused from image to image; one per thread.
class Decoder {
  public:
    Decoder() {
        std::memset(&info, 0, sizeof info);
        info.err = jpeg_api().std_error(&errors.manager);
        errors.manager.error_exit = on_error;
        errors.manager.emit_message = on_message;
        errors.manager.output_message = on_output;
        source.init_source = no_init;
        source.fill_input_buffer = no_more;
        source.skip_input_data = skip;
        source.resync_to_restart = jpeg_api().resync_to_restart;
        source.term_source = no_init;
        if (setjmp(errors.back)) return;  // libjpeg of another ABI: `ready` stays false
        jpeg_api().create(&info, JPEG_LIB_VERSION, sizeof info);
        info.src = &source;
        ready = true;
    }
    ~Decoder() {
        if (ready) jpeg_api().destroy(&info);
    }
    Decoder(const Decoder&) = delete;
    Decoder& operator=(const Decoder&) = delete;

    void feed(const uint8_t* data, size_t size) {
        source.next_input_byte = data;
        source.bytes_in_buffer = size;
    }

    jpeg_decompress_struct info;
    jpeg_source_mgr source;
    Errors errors;
    ScanBytes scan;
    EntropyDecoder entropy;
    bool ready = false;
};

class JpegRows final : public Rows {
  public:
    JpegRows(Decoder& decoder, int offset, int width, bool luma)
        : decoder_(decoder), offset_(offset), width_(width), luma_(luma) {}

    const uint8_t* next(uint8_t* buffer) override {
        JSAMPROW row = wide_ != nullptr ? wide_ : buffer;
        jpeg_api().read_scanlines(&decoder_.info, &row, 1);
        uint8_t* pixels = row + 4 * static_cast<size_t>(offset_);
        if (luma_) to_luma(pixels);
        return pixels;
    }
    void decode_into(uint8_t* wide) { wide_ = wide; }

  private:
    // Pillow's RGB to L (Convert.c): ITU-R 601-2 in 16 bit fixed point.
    void to_luma(uint8_t* p) const {
        for (int x = 0; x < width_; x++, p += 4)
            p[0] = p[1] = p[2] = static_cast<uint8_t>((p[0] * 19595 + p[1] * 38470 + p[2] * 7471 + 0x8000) >> 16);
    }
    Decoder& decoder_;
    int offset_, width_;
    bool luma_;
    uint8_t* wide_ = nullptr;
};

class PixelRows final : public Rows {
  public:
    // `end`: where the image's memory ends, behind which nothing may be read.
    PixelRows(const uint8_t* pixels, size_t pitch, int channels, int width, const uint8_t* end, const Kernels& kernels)
        : at_(pixels), end_(end), pitch_(pitch), channels_(channels), width_(width), kernels_(kernels) {}

    int pixel() const override { return channels_ == 3 ? 3 : 4; }

    const uint8_t* next_as_it_is(uint8_t* buffer) override {
        if (channels_ != 3) return next(buffer);
        const uint8_t* row = at_;
        const size_t bytes = 3 * static_cast<size_t>(width_);
        if (static_cast<size_t>(end_ - at_) < bytes + 192) {
            std::memcpy(buffer, at_, bytes);
            row = buffer;
        }
        advance();
        return row;
    }

    const uint8_t* next(uint8_t* buffer) override {
        if (channels_ == 1) {
            const uint8_t* p = at_;
            uint8_t* q = buffer;
            for (int x = 0; x < width_; x++, p++, q += 4) q[0] = q[1] = q[2] = *p;
        } else {
            kernels_.spread(at_, buffer, width_);
        }
        advance();
        return buffer;
    }

  private:
    void advance() {
        at_ += pitch_;
        const uint8_t* soon = at_ + kRowsAhead * pitch_;
        for (int x = 0; x < channels_ * width_; x += 64) __builtin_prefetch(soon + x);  // a hint: it may lie behind the last row
    }

    static constexpr size_t kRowsAhead = 1;
    const uint8_t *at_, *end_;
    size_t pitch_;
    int channels_, width_;
    const Kernels& kernels_;
};

// A crop that lies decoded in memory as RGBX, read turned, with padding around it.
class TurnedRows final : public Rows {
  public:
    TurnedRows(const uint8_t* region, int region_width, int width, int height, const Layout& l) : layout_(l), width_(width), height_(height) {
        const ptrdiff_t column = 4, line = 4 * static_cast<ptrdiff_t>(region_width);
        step_x_ = l.swap ? line : column;
        step_y_ = l.swap ? column : line;
        const bool back_x = l.swap ? l.flip_y : l.flip_x, back_y = l.swap ? l.flip_x : l.flip_y;
        origin_ = region + (back_x ? step_x_ * (width - 1) : 0) + (back_y ? step_y_ * (height - 1) : 0);
        if (back_x) step_x_ = -step_x_;
        if (back_y) step_y_ = -step_y_;
    }

    const uint8_t* next(uint8_t* buffer) override {
        const int y = padded_from(y_++ - layout_.top, height_, layout_.mode);
        uint8_t* q = buffer;
        for (int x = -layout_.left; x < width_ + layout_.right; x++, q += 4) {
            const int u = padded_from(x, width_, layout_.mode);
            if (u < 0 || y < 0)
                std::memset(q, 0, 4);
            else
                std::memcpy(q, origin_ + step_x_ * u + step_y_ * y, 4);
        }
        return buffer;
    }

  private:
    Layout layout_;
    int width_, height_, y_ = 0;
    ptrdiff_t step_x_, step_y_;
    const uint8_t* origin_;
};

// The part of the source that a crop of the turned image covers.
Crop in_source(const Crop& c, const Layout& l, int width, int height) {
    const int u = l.swap ? c.top : c.left, un = l.swap ? c.height : c.width;
    const int v = l.swap ? c.left : c.top, vn = l.swap ? c.width : c.height;
    return {l.flip_x ? width - u - un : u, l.flip_y ? height - v - vn : v, un, vn};
}

// Layouts for which skipping rows and cropping columns was shown to leave the pixels alone.
bool plain_layout(const jpeg_decompress_struct& info) {
    if (info.num_components == 1) return info.max_h_samp_factor == 1 && info.max_v_samp_factor == 1;
    for (int c = 1; c < 3; c++)
        if (info.comp_info[c].h_samp_factor != 1 || info.comp_info[c].v_samp_factor != 1) return false;
    return info.comp_info[0].h_samp_factor <= 2 && info.comp_info[0].v_samp_factor <= 2;
}

constexpr const char* kDamaged = "damaged or incomplete scan";
thread_local Resizer resizer;

// Room for a region as RGBX, kept for the next image unless it is large.
class Region {
  public:
    uint8_t* room(size_t pixels) {
        if (bytes_.size() < pixels * 4 + 64) bytes_.resize(pixels * 4 + 64);
        return bytes_.data();
    }
    void trim() {
        if (bytes_.size() > (size_t{32} << 20)) std::vector<uint8_t>().swap(bytes_);
    }

  private:
    std::vector<uint8_t> bytes_;
};
thread_local Region region;

// Copy every row of a crop into the region, then resize from there.
void by_region(Rows& rows, const Crop& source, const Crop& crop, const Layout& layout, uint8_t* room, const Shape& shape,
               const Target& target, const Kernels& kernels, uint8_t* buffer) {
    const size_t line = 4 * static_cast<size_t>(source.width);
    for (int y = 0; y < source.height; y++) std::memcpy(room + line * static_cast<size_t>(y), rows.next(buffer), line);
    TurnedRows turned(room, source.width, crop.width, crop.height, layout);
    resizer.run(turned, shape, target, kernels);
}

// The decoder of this thread with an image opened, its crop's columns chosen and the rows above it left behind.
struct Opened {
    Decoder& decoder;
    std::vector<uint8_t>& wide;

    // `crop` and `full_width` in pixels as decoded. To be called between setjmp and abort; owns nothing.
    JpegRows begin(const Crop& crop, int full_width, bool luma) const {
        jpeg_decompress_struct& info = decoder.info;
        const JpegApi& api = jpeg_api();
        const int block = info.min_DCT_scaled_size;
        const bool ours = decoder.entropy.take_over(&info, decoder.scan, on_error);
        int offset = crop.left, above = crop.top;
        if (plain_layout(info)) {
            const int margin = info.max_h_samp_factor > 1 ? info.max_h_samp_factor * block : 0;
            const int from = crop.left > margin ? crop.left - margin : 0;
            const int to = crop.left + crop.width + margin < full_width ? crop.left + crop.width + margin : full_width;
            JDIMENSION x = static_cast<JDIMENSION>(from), width = static_cast<JDIMENSION>(to - from);
            if (to - from < full_width) {
                api.crop_scanline(&info, &x, &width);
                const int mcu = info.max_h_samp_factor * block;  // one column more on each side costs little
                if (ours) decoder.entropy.want_columns(static_cast<int>(x) / mcu - 1, static_cast<int>(x + width) / mcu + 1);
            }
            offset = crop.left - (to - from < full_width ? static_cast<int>(x) : 0);
            if (above > 0) api.skip_scanlines(&info, static_cast<JDIMENSION>(above));
            above = 0;
        }
        JpegRows rows(decoder, offset, crop.width, luma);
        if (static_cast<int>(info.output_width) > crop.width) rows.decode_into(whole());
        for (; above > 0; above--) rows.next(whole());
        return rows;
    }
    uint8_t* whole() const {
        return reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(wide.data()) + 63) & ~uintptr_t{63}) + 16;
    }
};

struct Memory {
    Decoder decoder;
    std::vector<uint8_t> wide;
};

Memory& memory() {
    thread_local Memory own;
    return own;
}

// What has to hold before libjpeg is called, and memory for a row of the whole width, which may be decoded before it is cropped:
// taken here, where no longjmp can pass it by.
const char* prepare(Memory& m, const uint8_t* data, size_t size, const Header& header, size_t pitch) {
    if (jpeg_api().create == nullptr) return "Pillow's libjpeg is not connected";
    if (!m.decoder.ready) return "Pillow's libjpeg has another binary interface";
    if (m.wide.size() < 2 * pitch) m.wide.resize(2 * pitch);
    return m.decoder.scan.read(data + header.scan, data + size) ? nullptr : kDamaged;
}

size_t pitch_of(const Header& header) { return (static_cast<size_t>(header.width) + 64) * 4 + 192; }

bool read_header(jpeg_decompress_struct& info, const Header& header) {
    jpeg_api().read_header(&info, TRUE);
    info.out_color_space = JCS_EXT_RGBX;
    return static_cast<int>(info.image_width) == header.width && static_cast<int>(info.image_height) == header.height;
}

}  // namespace

const char* render_jpeg(const uint8_t* data, size_t size, const Header& header, const Crop& turned, const Layout& layout,
                        const Shape& shape, const Target& target, const Kernels& kernels, bool luma) {
    const Crop crop = in_source(turned, layout, header.width, header.height);
    const size_t pixels = static_cast<size_t>(crop.width) * static_cast<size_t>(crop.height), pitch = pitch_of(header);
    if (!layout.plain() && pixels > kMostPixels) return "too large to turn or pad in memory";
    Memory& m = memory();
    if (const char* refused = prepare(m, data, size, header, pitch)) return refused;
    uint8_t* room = layout.plain() ? nullptr : region.room(pixels);
    const Opened opened{m.decoder, m.wide};
    jpeg_decompress_struct& info = m.decoder.info;
    if (setjmp(m.decoder.errors.back)) {
        jpeg_api().abort(&info);
        return "libjpeg gave up";
    }
    jpeg_api().abort(&info);  // after an exception the last image may still be open
    m.decoder.feed(data, size);
    if (!read_header(info, header)) {
        jpeg_api().abort(&info);
        return "the header is ambiguous";
    }
    jpeg_api().start(&info);
    JpegRows rows = opened.begin(crop, header.width, luma);
    if (layout.plain())
        resizer.run(rows, shape, target, kernels);
    else
        by_region(rows, crop, turned, layout, room, shape, target, kernels, opened.whole() + pitch);
    jpeg_api().abort(&info);
    region.trim();
    m.decoder.scan.trim();
    return nullptr;
}

const char* render_scaled(const uint8_t* data, size_t size, const Header& header, const Crop& crop, int scale, const Shape& given,
                          const Target& target, const Kernels& kernels, bool luma) {
    const size_t pitch = pitch_of(header);
    Memory& m = memory();
    if (const char* refused = prepare(m, data, size, header, pitch)) return refused;
    const Opened opened{m.decoder, m.wide};
    jpeg_decompress_struct& info = m.decoder.info;
    if (setjmp(m.decoder.errors.back)) {
        jpeg_api().abort(&info);
        return "libjpeg gave up";
    }
    jpeg_api().abort(&info);
    m.decoder.feed(data, size);
    if (!read_header(info, header)) {
        jpeg_api().abort(&info);
        return "the header is ambiguous";
    }
    info.scale_num = 1;
    info.scale_denom = static_cast<unsigned>(scale);
    jpeg_api().start(&info);
    const int width = static_cast<int>(info.output_width), height = static_cast<int>(info.output_height);
    // Every pixel that the crop touches; what it covers of the outer ones is left to the coefficients.
    const int right = (crop.left + crop.width + scale - 1) / scale, bottom = (crop.top + crop.height + scale - 1) / scale;
    Crop small{crop.left / scale, crop.top / scale, 0, 0};
    small.width = (right < width ? right : width) - small.left;
    small.height = (bottom < height ? bottom : height) - small.top;
    Shape shape = given;
    shape.width = small.width;
    shape.height = small.height;
    shape.across = {static_cast<double>(crop.left) / scale - small.left, static_cast<double>(crop.width) / scale};
    shape.down = {static_cast<double>(crop.top) / scale - small.top, static_cast<double>(crop.height) / scale};
    JpegRows rows = opened.begin(small, width, luma);
    resizer.run(rows, shape, target, kernels);
    jpeg_api().abort(&info);
    m.decoder.scan.trim();
    return nullptr;
}

const char* render_pixels(const uint8_t* pixels, size_t pitch, int channels, int width, int height, const Crop& turned,
                          const Layout& layout, const Shape& shape, const Target& target, const Kernels& kernels) {
    const Crop crop = in_source(turned, layout, width, height);
    const uint8_t* first = pixels + static_cast<size_t>(crop.top) * pitch + static_cast<size_t>(crop.left) * channels;
    const uint8_t* end = pixels + static_cast<size_t>(height - 1) * pitch + static_cast<size_t>(width) * channels;
    PixelRows rows(first, pitch, channels, crop.width, end, kernels);
    if (layout.plain()) {
        resizer.run(rows, shape, target, kernels);
        return nullptr;
    }
    const size_t count = static_cast<size_t>(crop.width) * static_cast<size_t>(crop.height);
    if (count > kMostPixels) return "too large to turn or pad in memory";
    std::vector<uint8_t> buffer(4 * static_cast<size_t>(crop.width) + 192);
    by_region(rows, crop, turned, layout, region.room(count), shape, target, kernels, buffer.data());
    region.trim();
    return nullptr;
}

const char* entropy_only(const uint8_t* data, size_t size, int rows, bool ours) {
    if (jpeg_api().create == nullptr) return "Pillow's libjpeg is not connected";
    thread_local Decoder decoder;
    if (!decoder.ready) return "Pillow's libjpeg has another binary interface";
    const Header header = scan_jpeg(data, size);
    if (header.refused != nullptr) return header.refused;
    if (ours && !decoder.scan.read(data + header.scan, data + size)) return kDamaged;
    jpeg_decompress_struct& info = decoder.info;
    if (setjmp(decoder.errors.back)) {
        jpeg_api().abort(&info);
        return "libjpeg gave up";
    }
    jpeg_api().abort(&info);
    decoder.feed(data, size);
    jpeg_api().read_header(&info, TRUE);
    jpeg_api().start(&info);
    if (ours && !decoder.entropy.take_over(&info, decoder.scan, on_error)) {
        jpeg_api().abort(&info);
        return "the restart markers are not where they belong";
    }
    jpeg_api().skip_scanlines(&info, static_cast<JDIMENSION>(rows));
    jpeg_api().abort(&info);
    return nullptr;
}

}  // namespace fastload
