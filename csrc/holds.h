// The views that this process has, counted per entry.
//
// The word has one bit per participant, so several views in one process need a count beside it.
// The steps 0 -> 1 and 1 -> 0 happen together with their swap under one mutex: otherwise two
// threads reach, in six steps, a view whose bit is clear.
#pragma once

#include <limits>
#include <mutex>
#include <optional>
#include <vector>

#include "directory.h"

namespace ec_ipc {

template <class Policy>
class Holds {
 public:
  explicit Holds(Directory<Policy>& directory) : directory_(directory), local_(directory.entry_count()) {}

  std::optional<Found> pin(const Digest& key) {
    const std::lock_guard guard(mutex_);
    std::optional<Found> pinned(std::in_place);
    const auto& index = directory_.index();
    const bool done = !closed_ && index.visit_tagged(index.locate(key), [&](u64 i) {
      if (directory_.word(i).state != State::kReady || !same(directory_.digest(i), key)) return false;
      return pin_locked(i, &key, std::nullopt, false, *pinned);
    });
    if (!done) pinned.reset();
    return pinned;
  }

  std::optional<Found> pin(Token token) { return pin(token, false); }
  // A further hold on what another participant, or this one, holds: see Directory::set_bit.
  std::optional<Found> pin_shared(Token token) { return pin(token, true); }

  // True when this was the last hold of a participant that is leaving: the caller ends it.
  bool unpin(Token token) {
    const std::lock_guard guard(mutex_);
    Local& local = local_[token.entry];
    if (local.count == 0 || local.generation != token.generation) {
      directory_.count(kLateReleases);
      return false;
    }
    --local.count;
    --total_;
    if (local.count == 0) directory_.clear_bit(token);
    return ends();
  }

  u64 total() {
    const std::lock_guard guard(mutex_);
    return total_;
  }
  // No new pins from now on. True when there is no hold left to wait for: the caller ends it.
  bool close() {
    const std::lock_guard guard(mutex_);
    closed_ = true;
    return ends();
  }
  void open() {
    const std::lock_guard guard(mutex_);
    closed_ = ended_ = false;
  }
  bool closed() {
    const std::lock_guard guard(mutex_);
    return closed_;
  }

 private:
  struct Local {
    std::uint32_t count = 0;
    std::uint32_t generation = 0;
  };

  std::optional<Found> pin(Token token, bool shared) {
    const std::lock_guard guard(mutex_);
    std::optional<Found> pinned(std::in_place);
    const bool done = !closed_ && directory_.contains(token.entry) &&
                      pin_locked(token.entry, nullptr, token.generation, shared, *pinned);
    if (!done) pinned.reset();
    return pinned;
  }

  // True once: whoever asks again while the last hold's thread still gives up the slot must not do
  // so as well, for the slot may be somebody else's by then.
  bool ends() {
    if (!closed_ || total_ != 0 || ended_) return false;
    ended_ = true;
    return true;
  }

  bool pin_locked(u64 i, const Digest* key, std::optional<std::uint32_t> generation, bool shared,
                  Found& found) {
    Local& local = local_[i];
    if (local.count == 0) {
      if (!directory_.set_bit(i, key, generation, shared, found)) return false;
    } else {
      // Our bit is set, so the entry is READY and its fields stand still.
      if (local.count == std::numeric_limits<std::uint32_t>::max()) return false;
      if (generation && *generation != local.generation) return false;
      if (!directory_.read_held({i, local.generation}, directory_.word(i), key, shared, found)) return false;
    }
    local.generation = found.token.generation;
    ++local.count;
    ++total_;
    directory_.store(directory_.entry(i).last_used_ns, directory_.policy().now_ns());
    return true;
  }

  Directory<Policy>& directory_;
  typename Policy::Mutex mutex_;
  std::vector<Local> local_;
  u64 total_ = 0;
  bool closed_ = false;
  bool ended_ = false;
};

}  // namespace ec_ipc
