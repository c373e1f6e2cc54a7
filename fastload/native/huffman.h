// Entropy decoding of baseline scans (ITU-T T.81, annex F.2) in place of libjpeg's, behind its own hook.
//
// libjpeg asks an entropy decoder for one MCU of coefficients after the other and does the rest: inverse transform, upsampling,
// colour. This one gives the same coefficients sooner. The scan is freed of its stuffed bytes beforehand, so that bits are taken
// eight bytes at a time, and one look-up gives run, length and value of most coefficients at once. What libjpeg would decode
// with a warning (bad codes, missing bits) it refuses instead.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "jpeg_api.h"

namespace fastload {

// The entropy-coded bytes of one scan without stuffing, and where each restart interval begins. Kept from image to image.
class ScanBytes {
  public:
    // Copies the scan that starts at `p`. False unless every 0xFF in it is followed by 0x00 or a restart marker, up to an EOI.
    bool read(const uint8_t* p, const uint8_t* end);
    void trim();  // give back what an unusually large file needed

    const uint8_t* bytes() const { return bytes_.data(); }
    const std::vector<size_t>& ends() const { return ends_; }  // one past the last byte of each interval
    bool restarts_in_order() const { return in_order_; }

  private:
    std::vector<uint8_t> bytes_;
    std::vector<size_t> ends_;
    bool in_order_ = true;
};

constexpr int kPeek = 10;           // bits that are looked up at once: 99 in 100 codes of the photos, in 4 kB a table
constexpr int kPairPeek = 12;       // likewise for two symbols, values and all
constexpr unsigned kLongCodes = 2048;  // longer codes share their first bits: these many of their 16-bit prefixes are looked up

// One Huffman table, expanded. An entry: bits 0-7 all bits of code and value (0: no entry), 8-15 the run of zeros before the
// value, 16-23 bits of the value, 24-31 bits of the code.
class HuffmanTable {
  public:
    bool build(const JHUFF_TBL& from, bool ac);  // false: a symbol that no baseline file has
    void build_pairs();                          // of the AC table that was built; once is enough

    uint32_t entry[1 << kPeek];       // by the next kPeek bits
    uint32_t long_entry[kLongCodes];  // by the next 16 bits, less first_long
    unsigned first_long;
    uint32_t limit[17];  // by length: the first 16-bit prefix of a longer code
    int offset[17];      // by length: position of a code's symbol, less the code
    uint8_t symbols[256];

    // For blocks that nobody wants, by the next kPairPeek bits: bits 0-7 all bits of as many as two AC symbols (0: too many
    // to be looked up), 8-15 how many coefficients they pass.
    uint16_t pair[1 << kPairPeek];

  private:
    UINT8 bits_[17] = {0};
    UINT8 given_[256] = {0};
    bool built_ = false, ac_ = false, good_ = false, paired_ = false;
};

class EntropyDecoder {
  public:
    // Take over from libjpeg's decoder, after jpeg_start_decompress; `fail` is called, and must not return, where the scan is
    // not what it should be. False: the file is libjpeg's to decode (its restart markers are not where they belong).
    bool take_over(j_decompress_ptr info, const ScanBytes& scan, void (*fail)(j_common_ptr));

    // Columns of MCUs whose coefficients are wanted; of the others only the bits are read.
    void want_columns(int first, int last) { first_ = first, last_ = last; }

  private:
    struct Bits;
    static boolean decode(j_decompress_ptr info, JBLOCKROW* blocks);
    bool mcu(JBLOCKROW* blocks);
    void start_interval();
    bool blocks_of(JBLOCKROW* blocks);
    static bool next(Bits& bits, const HuffmanTable& table, bool ac, uint32_t& entry);
    static int value(const Bits& bits, uint32_t entry);
    template <bool kKeep>
    static bool block(Bits& bits, const HuffmanTable& dc, const HuffmanTable& ac, int& last_dc, JCOEF* out);
    static bool pass(Bits& bits, const HuffmanTable& dc, const HuffmanTable& ac, int& last_dc);
    void prepare_to_pass();

    HuffmanTable dc_[NUM_HUFF_TBLS], ac_[NUM_HUFF_TBLS];
    struct Part {
        const HuffmanTable* dc;
        HuffmanTable* ac;
        int component;
    };
    Part parts_[D_MAX_BLOCKS_IN_MCU];
    int part_count_ = 0, last_dc_[MAX_COMPS_IN_SCAN];
    const ScanBytes* scan_ = nullptr;
    void (*fail_)(j_common_ptr) = nullptr;
    size_t interval_ = 0;
    unsigned to_restart_ = 0, restart_every_ = 0;
    int column_ = 0, columns_ = 0, first_ = 0, last_ = 0;
    uint64_t acc_ = 0;
    int left_ = 0;
    const uint8_t* at_ = nullptr;
    const uint8_t* end_ = nullptr;
    bool passes_ = false;  // the tables of pairs are there
};

}  // namespace fastload
