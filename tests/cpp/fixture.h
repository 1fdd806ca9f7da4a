// A segment in memory without a name, which several handles of this process can open.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "participant.h"

namespace fixture {

using namespace ec_ipc;
using namespace std::chrono_literals;

inline constexpr auto kPatience = 10s;
inline constexpr u64 kTtl = 1'000'000'000ULL * 300;

class TestSegment {
 public:
  explicit TestSegment(u64 max_items = 64) : fd_(::memfd_create("ec_ipc_test", MFD_CLOEXEC)) {
    if (fd_.get() < 0 || ::ftruncate(fd_.get(), static_cast<off_t>(segment_bytes(max_items))) != 0)
      std::abort();
    const std::array<std::byte, kFingerprintBytes> fingerprint{};
    initialise_segment(fd_.get(), max_items, fingerprint, "test");
  }
  int fd() const { return fd_.get(); }
  // Another open file, as another process would have it: lock bytes exclude it.
  int open() const {
    const int fd = ::open(("/proc/self/fd/" + std::to_string(fd_.get())).c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) std::abort();
    return fd;
  }
  std::shared_ptr<Participant> handle() const { return std::make_shared<Participant>(open()); }
  std::shared_ptr<Participant> reader() const {
    auto participant = handle();
    participant->join("reader", 1, kPatience);
    return participant;
  }
  std::shared_ptr<Participant> producer(u64 arena_bytes) const {
    auto participant = handle();
    participant->join("producer", 2, kPatience);
    ArenaRecord record;
    record.nbytes = arena_bytes;
    participant->set_arena(record, kPatience);
    return participant;
  }

 private:
  OwnedFd fd_;
};

inline Digest key(u64 number) { return {number, 0, 0, 0}; }

inline Request request(u64 number, u64 nbytes, u64 announced = 1, bool deallocate = true, u64 ttl_ns = kTtl) {
  Request r;
  r.digest = key(number);
  r.nbytes = nbytes;
  r.rank = 1;
  r.shape = {nbytes};
  r.announced = announced;
  r.ttl_ns = ttl_ns;
  r.deallocate = deallocate;
  return r;
}

inline Placement put(Participant& producer, const Request& r) {
  const Placement placement = producer.reserve(r, kPatience);
  if (placement.outcome == Outcome::kReserved) producer.publish(*placement.token, 0);
  return placement;
}

}  // namespace fixture
