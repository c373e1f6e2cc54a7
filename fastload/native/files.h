// Whole files into memory, with the fewest system calls: those that are ordinary; the rest is left to Python.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fastload {

// A regular file of 1 to kAtOnce bytes, open for reading until it goes; `size` is 0 where it is nothing of that kind.
class PlainFile {
  public:
    static constexpr size_t kAtOnce = size_t{1} << 20;

    explicit PlainFile(const char* path);
    ~PlainFile();
    PlainFile(PlainFile&& other) noexcept;
    PlainFile(const PlainFile&) = delete;
    PlainFile& operator=(const PlainFile&) = delete;

    // Whether it gave exactly `size` bytes, all that it holds: false for one that is being written.
    bool read(uint8_t* to) const;

    size_t size = 0;

  private:
    int file_ = -1;
};

}  // namespace fastload
