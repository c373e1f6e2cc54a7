#include "files.h"

#ifndef _WIN32
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

namespace fastload {

PlainFile::PlainFile(PlainFile&& other) noexcept : size(other.size), file_(other.file_) {
    other.file_ = -1;
    other.size = 0;
}

#ifdef _WIN32  // nothing is ordinary there: Python opens every file

PlainFile::PlainFile(const char*) {}
PlainFile::~PlainFile() {}
bool PlainFile::read(uint8_t*) const { return false; }

#else

// O_NONBLOCK: a pipe without a writer is opened at once, and found to be none of ours.
PlainFile::PlainFile(const char* path) : file_(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    struct stat found;
    if (file_ < 0 || fstat(file_, &found) != 0 || !S_ISREG(found.st_mode) || found.st_size <= 0) return;
    if (static_cast<uint64_t>(found.st_size) <= kAtOnce) size = static_cast<size_t>(found.st_size);
}

PlainFile::~PlainFile() {
    if (file_ >= 0) close(file_);
}

bool PlainFile::read(uint8_t* to) const {
    uint8_t more;
    return size > 0 && ::read(file_, to, size) == static_cast<ssize_t>(size) && ::read(file_, &more, 1) == 0;
}

#endif

}  // namespace fastload
