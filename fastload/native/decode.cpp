// libjpeg is told what is not needed: rows above the crop are skipped, columns beside it cropped, the rest never asked for.
// Errors longjmp back into the function that called libjpeg; nothing with a destructor lives between the two.
#include "decode.h"

#include <csetjmp>
#include <cstring>

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
    PixelRows(const uint8_t* pixels, size_t pitch, int channels, int width)
        : at_(pixels), pitch_(pitch), channels_(channels), width_(width) {}

    const uint8_t* next(uint8_t* buffer) override {
        const uint8_t* p = at_;
        uint8_t* q = buffer;
        if (channels_ == 1) {
            for (int x = 0; x < width_; x++, p++, q += 4) q[0] = q[1] = q[2] = *p;
        } else {
            for (int x = 0; x < width_; x++, p += 3, q += 4) {
                q[0] = p[0];
                q[1] = p[1];
                q[2] = p[2];
            }
        }
        at_ += pitch_;
        return buffer;
    }

  private:
    const uint8_t* at_;
    size_t pitch_;
    int channels_, width_;
};

// Layouts for which skipping rows and cropping columns was shown to leave the pixels alone.
bool plain_layout(const jpeg_decompress_struct& info) {
    if (info.num_components == 1) return true;
    for (int c = 1; c < 3; c++)
        if (info.comp_info[c].h_samp_factor != 1 || info.comp_info[c].v_samp_factor != 1) return false;
    return info.comp_info[0].h_samp_factor <= 2 && info.comp_info[0].v_samp_factor <= 2;
}

thread_local Resizer resizer;

}  // namespace

const char* render_jpeg(const uint8_t* data, size_t size, const Header& header, const Crop& crop, const Shape& shape,
                        const Target& target, const Kernels& kernels, bool luma) {
    if (jpeg_api().create == nullptr) return "Pillow's libjpeg is not connected";
    thread_local Decoder decoder;
    thread_local std::vector<uint8_t> wide;
    if (!decoder.ready) return "Pillow's libjpeg has another binary interface";
    jpeg_decompress_struct& info = decoder.info;
    const JpegApi& api = jpeg_api();
    // A row of the whole width may be decoded before it is cropped; allocated here, where no longjmp can pass it by.
    const size_t pitch = (static_cast<size_t>(header.width) + 64) * 4 + 192;
    if (wide.size() < pitch) wide.resize(pitch);
    if (setjmp(decoder.errors.back)) {
        api.abort(&info);
        return "libjpeg gave up";
    }
    api.abort(&info);  // after an exception the last image may still be open
    decoder.feed(data, size);
    api.read_header(&info, TRUE);
    if (static_cast<int>(info.image_width) != header.width || static_cast<int>(info.image_height) != header.height) {
        api.abort(&info);
        return "the header is ambiguous";
    }
    info.out_color_space = JCS_EXT_RGBX;
    api.start(&info);
    int offset = crop.left, above = crop.top;
    if (plain_layout(info)) {
        const int margin = info.max_h_samp_factor > 1 ? info.max_h_samp_factor * DCTSIZE : 0;
        const int from = crop.left > margin ? crop.left - margin : 0;
        const int to = crop.left + crop.width + margin < header.width ? crop.left + crop.width + margin : header.width;
        JDIMENSION x = static_cast<JDIMENSION>(from), width = static_cast<JDIMENSION>(to - from);
        if (to - from < header.width) api.crop_scanline(&info, &x, &width);
        offset = crop.left - (to - from < header.width ? static_cast<int>(x) : 0);
        if (above > 0) api.skip_scanlines(&info, static_cast<JDIMENSION>(above));
        above = 0;
    }
    JpegRows rows(decoder, offset, crop.width, luma);
    uint8_t* whole = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(wide.data()) + 63) & ~uintptr_t{63}) + 16;
    if (static_cast<int>(info.output_width) > crop.width) rows.decode_into(whole);
    for (; above > 0; above--) rows.next(whole);
    resizer.run(rows, shape, target, kernels);
    api.abort(&info);
    return nullptr;
}

void render_pixels(const uint8_t* pixels, size_t pitch, int channels, const Crop& crop, const Shape& shape,
                   const Target& target, const Kernels& kernels) {
    const uint8_t* first = pixels + static_cast<size_t>(crop.top) * pitch + static_cast<size_t>(crop.left) * channels;
    PixelRows rows(first, pitch, channels, crop.width);
    resizer.run(rows, shape, target, kernels);
}

const char* entropy_only(const uint8_t* data, size_t size, int rows) {
    if (jpeg_api().create == nullptr) return "Pillow's libjpeg is not connected";
    thread_local Decoder decoder;
    if (!decoder.ready) return "Pillow's libjpeg has another binary interface";
    if (setjmp(decoder.errors.back)) {
        jpeg_api().abort(&decoder.info);
        return "libjpeg gave up";
    }
    decoder.feed(data, size);
    jpeg_api().read_header(&decoder.info, TRUE);
    jpeg_api().start(&decoder.info);
    jpeg_api().skip_scanlines(&decoder.info, static_cast<JDIMENSION>(rows));
    jpeg_api().abort(&decoder.info);
    return nullptr;
}

}  // namespace fastload
