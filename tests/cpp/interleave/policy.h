// The policy that puts the core's code into the world of the model: every access asks the scheduler.
#pragma once

#include "explorer.h"

namespace interleave {

class ModelPolicy {
 public:
  class Mutex {
   public:
    Mutex() : place_(explorer().world().new_mutex()) {}
    void lock() { explorer().lock(place_, static_cast<int>(place_)); }
    void unlock() { explorer().unlock(place_); }

   private:
    unsigned place_;
  };

  explicit ModelPolicy(int process) : process_(process) {}

  u64 load(const u64& word) const { return explorer().load(word); }
  void store(u64& word, u64 value) const { explorer().store(word, value); }
  bool compare_exchange(u64& word, u64& expected, u64 desired) const {
    return explorer().compare_exchange(word, expected, desired);
  }
  u64 now_ns() const { return explorer().now(); }
  // An open file does not see its own locks.
  bool alive(unsigned slot) const {
    const int owner = explorer().owner(kAlivePlace + slot);
    return owner != kNobody && owner != process_;
  }
  void lock(Mutex& mutex, Deadline, const char*) const { mutex.lock(); }
  // It is the open file that owns a lock byte, and it may take it twice.
  void acquire(std::int64_t byte, Deadline, const char*) const {
    explorer().lock(World::place_of_byte(byte), process_);
  }
  bool try_acquire(std::int64_t byte) const {
    return explorer().try_lock(World::place_of_byte(byte), process_);
  }
  void release(std::int64_t byte) const noexcept { explorer().release(World::place_of_byte(byte), process_); }

 private:
  int process_;
};

}  // namespace interleave
