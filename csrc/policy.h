// How directory code touches the world. A test may plug in another policy, for example one that
// hands control to a scheduler at every shared access.
//
// A policy has:
//   Mutex                                   excludes the threads of one process
//   load, store, compare_exchange           of one shared 64-bit word, sequentially consistent
//   now_ns                                  a clock that all processes of the node share
//   alive(slot)                             whether that participant's lock byte is held
//   lock(mutex), acquire(byte)              wait until they are ours, or throw LockTimeout
//   try_acquire(byte), release(byte)        of a lock byte (liveness.h)
#pragma once

#include <time.h>

#include <atomic>
#include <mutex>

#include "liveness.h"

namespace ec_ipc {

class SystemPolicy {
 public:
  using Mutex = std::mutex;

  u64 load(const u64& word) const { return ref(word).load(std::memory_order_seq_cst); }
  void store(u64& word, u64 value) const { ref(word).store(value, std::memory_order_seq_cst); }
  // On failure `expected` is what the word was.
  bool compare_exchange(u64& word, u64& expected, u64 desired) const {
    return ref(word).compare_exchange_strong(expected, desired, std::memory_order_seq_cst);
  }

  u64 now_ns() const {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<u64>(now.tv_sec) * 1'000'000'000 + static_cast<u64>(now.tv_nsec);
  }

  // Of another open file than `fd`; the directory knows its own slot.
  bool alive(unsigned slot) const { return lock_byte::alive(fd, slot); }

  // Polled, like the byte: ThreadSanitizer does not know the timed mutex of this C library.
  void lock(Mutex& mutex, Deadline deadline, const char* name) const {
    Backoff backoff(deadline);
    while (!mutex.try_lock()) {
      if (!backoff.wait()) lock_byte::throw_timeout(name);
    }
  }
  void acquire(std::int64_t byte, Deadline deadline, const char* name) const {
    lock_byte::lock(fd, byte, deadline, name);
  }
  bool try_acquire(std::int64_t byte) const { return lock_byte::try_lock(fd, byte); }
  void release(std::int64_t byte) const noexcept { lock_byte::unlock(fd, byte); }

  int fd = -1;

 private:
  static std::atomic_ref<u64> ref(const u64& word) { return std::atomic_ref<u64>(const_cast<u64&>(word)); }
  static_assert(std::atomic_ref<u64>::is_always_lock_free);
};

}  // namespace ec_ipc
