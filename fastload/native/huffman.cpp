// See huffman.h. Bit buffer: the next bits stand at the top of a 64-bit word, which is topped up to at least 56 of them.
#include "huffman.h"

#include <cstring>

namespace fastload {
namespace {

// Longest block: a DC code with its bits and 63 AC codes with theirs, 31 bits each; beyond it a refill reads eight bytes.
constexpr size_t kSlack = 64 * 31 / 8 + 64;
constexpr int kEndOfBlock = 128;  // the run of an EOB: past every coefficient, and past every run that is too long

// Zigzag order to natural order; positions behind the last coefficient, where an EOB "writes" its zero, lead to the last.
struct Natural {
    uint8_t at[64 + kEndOfBlock];
    constexpr Natural() : at() {
        int x = 0, y = 0;
        for (int k = 0; k < 64; k++) {
            at[k] = static_cast<uint8_t>(8 * y + x);
            const bool up = (x + y) % 2 == 0;
            if (up ? x == 7 : y == 7)
                up ? y++ : x++;
            else if (up ? y == 0 : x == 0)
                up ? x++ : y++;
            else
                x += up ? 1 : -1, y -= up ? 1 : -1;
        }
        for (int k = 64; k < 64 + kEndOfBlock; k++) at[k] = 63;
    }
};
constexpr Natural kNatural;
static_assert(kNatural.at[2] == 8 && kNatural.at[9] == 24 && kNatural.at[54] == 39 && kNatural.at[62] == 62, "T.81, figure A.6");

uint64_t big_endian(const uint8_t* p) {
    uint64_t v;
    std::memcpy(&v, p, 8);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return v;
#else
    return __builtin_bswap64(v);
#endif
}

uint32_t packed(int length, int run, int size) {
    return static_cast<uint32_t>(length + size) | static_cast<uint32_t>(run) << 8 | static_cast<uint32_t>(size) << 16 |
           static_cast<uint32_t>(length) << 24;
}

int run_of(int symbol) { return (symbol & 15) != 0 || symbol == 0xF0 ? symbol >> 4 : kEndOfBlock; }

}  // namespace

bool ScanBytes::read(const uint8_t* p, const uint8_t* end) {
    if (bytes_.size() < static_cast<size_t>(end - p) + kSlack) bytes_.resize(static_cast<size_t>(end - p) + kSlack);
    ends_.clear();
    in_order_ = true;
    uint8_t* out = bytes_.data();
    while (true) {
        const uint8_t* ff = static_cast<const uint8_t*>(std::memchr(p, 0xFF, static_cast<size_t>(end - p)));
        if (ff == nullptr || ff + 1 >= end) return false;
        const uint8_t next = ff[1];
        const size_t n = static_cast<size_t>(ff - p) + (next == 0);  // a stuffed 0xFF is data itself
        std::memcpy(out, p, n);
        out += n;
        p = ff + 2;
        if (next == 0) continue;
        if (next != 0xD9 && (next < 0xD0 || next > 0xD7)) return false;
        if (next != 0xD9 && (next & 7) != (ends_.size() & 7)) in_order_ = false;
        ends_.push_back(static_cast<size_t>(out - bytes_.data()));
        if (next == 0xD9) break;
    }
    std::memset(out, 0, kSlack);
    return true;
}

void ScanBytes::trim() {
    if (bytes_.size() > (size_t{32} << 20)) std::vector<uint8_t>().swap(bytes_);
}

bool HuffmanTable::build(const JHUFF_TBL& from, bool ac) {
    if (built_ && ac == ac_ && std::memcmp(bits_, from.bits, sizeof bits_) == 0 && std::memcmp(given_, from.huffval, sizeof given_) == 0)
        return good_;  // most files of a data set share their tables
    std::memcpy(bits_, from.bits, sizeof bits_);
    std::memcpy(given_, from.huffval, sizeof given_);
    built_ = true, ac_ = ac, good_ = false, paired_ = false;
    std::memset(entry, 0, sizeof entry);
    std::memset(long_entry, 0, sizeof long_entry);
    std::memcpy(symbols, given_, sizeof symbols);
    unsigned code = 0;
    int k = 0;
    limit[0] = 0;
    for (int length = 1; length <= 16; length++, code <<= 1) {
        if (code + bits_[length] > 1u << length || k + bits_[length] > 256) return false;
        if (length == kPeek + 1) first_long = code << (16 - length);
        offset[length] = k - static_cast<int>(code);
        for (int i = 0; i < bits_[length]; i++, k++, code++) {
            const int symbol = symbols[k];
            if (!ac && symbol > 15) return false;
            const uint32_t e = packed(length, ac ? run_of(symbol) : 0, ac ? symbol & 15 : symbol);
            const unsigned first = length <= kPeek ? code << (kPeek - length) : (code << (16 - length)) - first_long;
            const unsigned end = first + (1u << ((length <= kPeek ? kPeek : 16) - length));
            uint32_t* const to = length <= kPeek ? entry : long_entry;
            for (unsigned at = first; at < end && (length <= kPeek || at < kLongCodes); at++) to[at] = e;
        }
        limit[length] = code << (16 - length);
    }
    return good_ = true;
}

void HuffmanTable::build_pairs() {
    if (paired_) return;
    paired_ = true;
    // what the first `room` bits give, where they hold a whole symbol: 2^room numbers from place 2^room on
    uint16_t within[2 << kPairPeek];
    uint16_t* const all = within + (1 << kPairPeek);
    for (int i = 0; i < 1 << kPairPeek; i++) {
        const uint32_t e = entry[i >> (kPairPeek - kPeek)], bits = e & 255, passed = (e >> 8 & 255) + 1;
        all[i] = static_cast<uint16_t>(bits > kPairPeek ? 0 : bits | (bits == 0 ? 0 : passed) << 8);
    }
    for (int room = kPairPeek - 1; room >= 0; room--) {
        const uint16_t* wider = within + (2 << room);
        uint16_t* const narrower = within + (1 << room);
        for (int i = 0; i < 1 << room; i++) narrower[i] = (wider[2 * i] & 255) <= room ? wider[2 * i] : 0;
    }
    for (int i = 0; i < 1 << kPairPeek;) {
        const int bits = all[i] & 255, room = kPairPeek - bits;
        const uint16_t* second = within + (1 << room);
        if (bits == 0)
            pair[i++] = 0;
        else if (all[i] >> 8 > kEndOfBlock)  // what comes after it is of the next block
            for (const int end = i + (1 << room); i < end; i++) pair[i] = all[i];
        else
            for (const int end = i + (1 << room); i < end; i++) pair[i] = static_cast<uint16_t>(all[i] + *second++);
    }
}

struct EntropyDecoder::Bits {
    uint64_t acc;
    int left;
    const uint8_t* at;

    void refill() {
        acc |= big_endian(at) >> left;
        at += (63 - left) >> 3;
        left |= 56;
    }
    void drop(int n) {
        acc <<= n;
        left -= n;
    }
};

// A code that was not looked up. By value both ways, so that the caller's bits can stay in registers. 0: no code begins so.
uint32_t __attribute__((noinline)) searched(uint64_t acc, const HuffmanTable& table, bool ac) {
    const unsigned prefix = static_cast<unsigned>(acc >> 48);
    int length = 1;
    while (length <= 16 && prefix >= table.limit[length]) length++;
    if (length > 16) return 0;
    const int symbol = table.symbols[(table.offset[length] + static_cast<int>(prefix >> (16 - length))) & 255];
    return packed(length, ac ? run_of(symbol) : 0, ac ? symbol & 15 : symbol);
}

// Finds the next entry of `table`, which the caller drops; false if no code begins like this. 25 bits are enough for a short
// code and its value; for a longer one the bits are topped up.
inline __attribute__((always_inline)) bool EntropyDecoder::next(Bits& bits, const HuffmanTable& table, bool ac, uint32_t& e) {
    e = table.entry[bits.acc >> (64 - kPeek)];
    if (__builtin_expect(e != 0, 1)) return true;
    bits.refill();
    const unsigned place = static_cast<unsigned>(bits.acc >> 48) - table.first_long;
    e = place < kLongCodes ? table.long_entry[place] : searched(bits.acc, table, ac);
    return e != 0;
}

// F.2.2.1, EXTEND, of the bits behind an entry's code.
inline __attribute__((always_inline)) int EntropyDecoder::value(const Bits& bits, uint32_t e) {
    const uint64_t after = bits.acc << (e >> 24);
    const unsigned size = e >> 16 & 63;
    const int negative = static_cast<int>(~static_cast<int64_t>(after) >> 63);
    return static_cast<int>((after >> 1) >> (63 - size)) + (negative & (1 - (1 << size)));
}

template <bool kKeep>
inline __attribute__((always_inline)) bool EntropyDecoder::block(Bits& bits, const HuffmanTable& dc, const HuffmanTable& ac,
                                                                int& last_dc, JCOEF* out) {
    uint32_t e;
    bits.refill();
    if (!next(bits, dc, false, e)) return false;
    last_dc += value(bits, e);
    bits.drop(static_cast<int>(e & 63));
    if (last_dc != static_cast<JCOEF>(last_dc)) return false;
    if (kKeep) out[0] = static_cast<JCOEF>(last_dc);
    unsigned k = 1;
    for (bool topped = false; k < 64; topped = !topped) {
        if (!topped) bits.refill();  // enough for two short codes with their values
        if (!next(bits, ac, true, e)) return false;
        k += e >> 8 & 255;
        if (kKeep) out[kNatural.at[k]] = static_cast<JCOEF>(value(bits, e));
        k++;
        bits.drop(static_cast<int>(e & 63));
    }
    return k == 64 || k > kEndOfBlock;
}

// Leaves a block behind. Two symbols at a time may go past a block that ends without an EOB: then once more, one by one.
inline __attribute__((always_inline)) bool EntropyDecoder::pass(Bits& bits, const HuffmanTable& dc, const HuffmanTable& ac,
                                                               int& last_dc) {
    const Bits before = bits;
    const int dc_before = last_dc;
    uint32_t e;
    bits.refill();
    if (!next(bits, dc, false, e)) return false;
    last_dc += value(bits, e);
    bits.drop(static_cast<int>(e & 63));
    if (last_dc != static_cast<JCOEF>(last_dc)) return false;
    unsigned k = 1;
    for (bool topped = false; k < 64; topped = !topped) {
        if (!topped) bits.refill();
        const unsigned two = ac.pair[bits.acc >> (64 - kPairPeek)];
        if (__builtin_expect(two == 0, 0)) {
            if (!next(bits, ac, true, e)) return false;
            bits.drop(static_cast<int>(e & 63));
            k += (e >> 8 & 255) + 1;
        } else {
            bits.drop(static_cast<int>(two & 63));
            k += two >> 8;
        }
    }
    if (k == 64 || (k > kEndOfBlock && k <= 64 + kEndOfBlock)) return true;
    bits = before;
    last_dc = dc_before;
    return block<false>(bits, dc, ac, last_dc, nullptr);
}

// The head of libjpeg's entropy decoders, as jpegint.h has it: the calls that the library makes of them.
struct Hook {
    void (*start_pass)(j_decompress_ptr);
    boolean (*decode_mcu)(j_decompress_ptr, JBLOCKROW*);
    boolean insufficient_data;
};

bool EntropyDecoder::take_over(j_decompress_ptr info, const ScanBytes& scan, void (*fail)(j_common_ptr)) {
    const size_t mcus = static_cast<size_t>(info->MCUs_per_row) * info->MCU_rows_in_scan;
    const size_t every = info->restart_interval == 0 ? mcus : info->restart_interval;
    if (info->entropy == nullptr || !scan.restarts_in_order() || scan.ends().size() != (mcus + every - 1) / every) return false;
    part_count_ = info->blocks_in_MCU;
    for (int i = 0; i < part_count_; i++) {
        const int c = info->MCU_membership[i];
        const jpeg_component_info* component = info->cur_comp_info[c];
        const JHUFF_TBL *dc = info->dc_huff_tbl_ptrs[component->dc_tbl_no], *ac = info->ac_huff_tbl_ptrs[component->ac_tbl_no];
        if (dc == nullptr || ac == nullptr) return false;
        if (!dc_[component->dc_tbl_no].build(*dc, false) || !ac_[component->ac_tbl_no].build(*ac, true)) return false;
        parts_[i] = {&dc_[component->dc_tbl_no], &ac_[component->ac_tbl_no], c};
    }
    scan_ = &scan;
    passes_ = false;
    fail_ = fail;
    interval_ = 0;
    restart_every_ = info->restart_interval;
    column_ = 0;
    columns_ = static_cast<int>(info->MCUs_per_row);
    want_columns(0, columns_ - 1);
    start_interval();
    info->client_data = this;
    reinterpret_cast<Hook*>(info->entropy)->decode_mcu = decode;
    return true;
}

void EntropyDecoder::start_interval() {
    at_ = scan_->bytes() + (interval_ == 0 ? 0 : scan_->ends()[interval_ - 1]);
    end_ = scan_->bytes() + scan_->ends()[interval_];
    acc_ = 0;
    left_ = 0;
    to_restart_ = restart_every_;
    interval_++;
    for (int& dc : last_dc_) dc = 0;
}

inline __attribute__((always_inline)) bool EntropyDecoder::blocks_of(JBLOCKROW* blocks) {
    Bits bits{acc_, left_, at_};
    for (int i = 0; i < part_count_; i++) {
        const Part& p = parts_[i];
        int last_dc = last_dc_[p.component];
        const bool good = blocks != nullptr ? block<true>(bits, *p.dc, *p.ac, last_dc, *blocks[i])
                                            : pass(bits, *p.dc, *p.ac, last_dc);
        // what was read, less what is left in the buffer, must lie within the interval
        if (!good || (bits.at - end_) * 8 > bits.left) return false;
        last_dc_[p.component] = last_dc;
    }
    acc_ = bits.acc;
    left_ = bits.left;
    at_ = bits.at;
    return true;
}

void EntropyDecoder::prepare_to_pass() {
    for (int i = 0; i < part_count_; i++) parts_[i].ac->build_pairs();
    passes_ = true;
}

bool EntropyDecoder::mcu(JBLOCKROW* blocks) {
    if (restart_every_ != 0) {
        if (to_restart_ == 0) {
            if (interval_ >= scan_->ends().size()) return false;
            start_interval();
        }
        to_restart_--;
    }
    const bool keep = blocks != nullptr && column_ >= first_ && column_ <= last_;
    column_ = column_ + 1 == columns_ ? 0 : column_ + 1;
    if (!keep && !passes_) prepare_to_pass();
    return blocks_of(keep ? blocks : nullptr);
}

boolean EntropyDecoder::decode(j_decompress_ptr info, JBLOCKROW* blocks) {
    EntropyDecoder& self = *static_cast<EntropyDecoder*>(info->client_data);
    if (!self.mcu(blocks)) self.fail_(reinterpret_cast<j_common_ptr>(info));
    return TRUE;
}

}  // namespace fastload
