// Lock bytes: who is alive, who writes, who creates.
//
// They are open-file-description locks. The kernel drops them when the last descriptor of the open
// file goes, so on any death, and a stopped process keeps them. A lock belongs to the open file: it
// excludes neither threads nor anything else that shares the descriptor, and a query through the
// descriptor that holds it says "free".
#pragma once

#include <chrono>
#include <cstdint>

#include "layout.h"

namespace ec_ipc {

using Clock = std::chrono::steady_clock;

// A moment after which a wait gives up.
struct Deadline {
  Clock::time_point at;
  static Deadline after(std::chrono::nanoseconds timeout) { return {Clock::now() + timeout}; }
};

// Sleeps a little longer each time; false once the deadline has passed.
class Backoff {
 public:
  explicit Backoff(Deadline deadline) : deadline_(deadline) {}
  bool wait();

 private:
  Deadline deadline_;
  std::chrono::nanoseconds nap_{20'000};
};

namespace lock_byte {

// Far beyond any size a segment can have.
inline constexpr std::int64_t kBase = std::int64_t{1} << 62;
inline constexpr std::int64_t kCreator = kBase;
inline constexpr std::int64_t kWriter = kBase + 1;
inline constexpr std::int64_t kLiveness = kBase + 64;

bool try_lock(int fd, std::int64_t byte);
// LockTimeout, which names the byte, when it is still held at the deadline.
void lock(int fd, std::int64_t byte, Deadline deadline, const char* name);
void unlock(int fd, std::int64_t byte) noexcept;
// Whether another open file holds one of these bytes.
bool held_by_another(int fd, std::int64_t first, std::int64_t count);

inline bool alive(int fd, unsigned slot) { return held_by_another(fd, kLiveness + slot, 1); }

[[noreturn]] void throw_timeout(const char* name);

}  // namespace lock_byte
}  // namespace ec_ipc
