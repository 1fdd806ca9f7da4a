// A directory segment as memory: its header written, checked and mapped.
#pragma once

#include <span>
#include <string>

#include "layout.h"

namespace ec_ipc {

// A descriptor that is closed with its owner.
class OwnedFd {
 public:
  explicit OwnedFd(int fd) : fd_(fd) {}
  OwnedFd(const OwnedFd&) = delete;
  OwnedFd& operator=(const OwnedFd&) = delete;
  ~OwnedFd() { close(); }
  int get() const { return fd_; }
  void close() noexcept;

 private:
  int fd_;
};

// A shared mapping of a file, unmapped with its owner.
class Memory {
 public:
  Memory(int fd, std::size_t nbytes, bool populate);
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();
  // A forked child gets no copy, and must abandon() what its parent's object said.
  void keep_from_children();
  void abandon() noexcept { data_ = nullptr; }
  void* data() const { return data_; }
  std::size_t size() const { return nbytes_; }

 private:
  void* data_;
  std::size_t nbytes_;
};

u64 file_size(int fd);

// ValueError (std::invalid_argument) for a max_items that no segment can have.
u64 segment_bytes(u64 max_items);
bool segment_is_ready(int fd);
void initialise_segment(int fd, u64 max_items, std::span<const std::byte> fingerprint,
                        const std::string& description);

// A mapped segment, every number of its header compared with what this build would write.
class Segment {
 public:
  explicit Segment(int fd);  // owns fd, and closes it also when this throws
  const SegmentView& view() const { return view_; }
  int fd() const { return fd_.get(); }
  // In a forked child: nothing of the parent's open file stays.
  void abandon() noexcept {
    memory_.abandon();
    fd_.close();
  }
  const Words<kFingerprintBytes>& fingerprint() const { return fingerprint_; }
  const std::string& description() const { return description_; }

 private:
  OwnedFd fd_;
  Geometry geometry_;
  Memory memory_;
  SegmentView view_;
  Words<kFingerprintBytes> fingerprint_{};
  std::string description_;
};

}  // namespace ec_ipc
