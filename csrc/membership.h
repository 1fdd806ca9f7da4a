// One participant's life in a directory: join, its arena, everything under the writer byte, leave.
//
// Knows nothing of files: locks, liveness and time come from the policy, so that a test can take every
// step of it apart.
#pragma once

#include <atomic>
#include <chrono>
#include <optional>
#include <string>

#include "directory.h"
#include "errors.h"
#include "holds.h"
#include "ledger.h"
#include "liveness.h"
#include "reclaim.h"
#include "reserve.h"

namespace ec_ipc {

struct ArenaRecord {
  ArenaRef ref{};
  u64 kind = 0;
  u64 nbytes = 0;
  u64 canary = 0;
  Words<kDeviceBytes> device{};
  Words<kHandleBytes> handle{};
};

// What a participant says about itself.
struct Identity {
  u64 pid = 0;
  u64 engine = 0;
  Words<kRoleBytes> role{};
};

template <class Policy>
class Membership {
 public:
  Membership(Policy& policy, const SegmentView& view)
      : policy_(policy), directory_(policy, view), holds_(directory_) {}
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  Directory<Policy>& directory() { return directory_; }
  const Directory<Policy>& directory() const { return directory_; }
  Holds<Policy>& holds() { return holds_; }
  int slot() const { return directory_.slot(); }
  u64 incarnation() const { return incarnation_.load(); }
  void check_joined() const {
    if (slot() < 0) throw SegmentError("this handle is no participant of the segment; call join() first");
  }

  unsigned join(const Identity& identity, std::chrono::nanoseconds timeout) {
    const Writing writing(*this, timeout);
    if (slot() >= 0) throw SegmentError("this handle is a participant already; open another one");
    Reclaim<Policy> reclaim(directory_);
    reclaim.run();
    const unsigned slot = take_slot(reclaim);

    ParticipantSlot& record = directory_.view().participants[slot];
    directory_.store(record.incarnation, 0);
    directory_.store(record.pid, identity.pid);
    directory_.store(record.engine, identity.engine);
    for (unsigned w = 0; w < identity.role.size(); ++w) directory_.store(record.role[w], identity.role[w]);
    for (u64& mapped : record.mapped) directory_.store(mapped, 0);
    const u64 incarnation = directory_.add(directory_.view().header->incarnations, 1);
    // SYNC POINT (Participant::participants): the incarnation last, over a record that is whole.
    directory_.store(record.incarnation, incarnation);
    incarnation_.store(incarnation);
    own_arena_ = {};
    arena_named_ = false;
    directory_.set_slot(static_cast<int>(slot));
    holds_.open();
    return slot;
  }

  // False while views are left: the last of them ends it.
  bool leave(std::chrono::nanoseconds timeout) {
    const Writing writing(*this, timeout);
    if (slot() < 0) return true;
    for (u64 i = 0; i < directory_.entry_count(); ++i) {
      const Word w = directory_.word(i);
      if (w.state == State::kWriting && w.holders == directory_.own_bit()) {
        directory_.abort({i, w.generation});
      }
    }
    forget_own_arena();
    // From here the thread that drops the last hold ends it; close() tells who that is.
    if (!holds_.close()) return false;
    finish_leaving();
    return true;
  }

  void unpin(Token token) {
    if (holds_.unpin(token)) finish_leaving();
  }

  Placement reserve(const Request& request, std::chrono::nanoseconds timeout) {
    const Writing writing(*this, timeout);
    check_joined();
    if (holds_.closed()) throw SegmentError("this participant is leaving; open the namespace again");
    if (own_arena_.nbytes == 0) throw SegmentError("this participant has no arena; call set_arena() first");
    return Reserve<Policy>(directory_, &ledger_).reserve(request, own_arena_);
  }

  Placement announce(const Digest& key, u64 n, u64 ttl_ns, std::chrono::nanoseconds timeout) {
    const Writing writing(*this, timeout);
    return Reserve<Policy>(directory_).announce(key, n, ttl_ns);
  }

  Maintained maintain(std::chrono::nanoseconds timeout) {
    const Writing writing(*this, timeout);
    return Reclaim<Policy>(directory_).run();
  }

  void set_arena(const ArenaRecord& record, std::chrono::nanoseconds timeout) {
    const Writing writing(*this, timeout);
    check_joined();
    if (arena_named_) {
      throw SegmentError(
          "this participant has had its arena: a new arena needs a new incarnation, so join again");
    }
    const ArenaRef ref{static_cast<unsigned>(slot()), incarnation()};
    ArenaSlot& shared = directory_.view().arenas[ref.slot];
    directory_.store(shared.incarnation, 0);
    directory_.store(shared.nbytes, record.nbytes);
    directory_.store(shared.kind, record.kind);
    directory_.store(shared.canary, record.canary);
    for (unsigned w = 0; w < record.device.size(); ++w) directory_.store(shared.device[w], record.device[w]);
    for (unsigned w = 0; w < record.handle.size(); ++w) directory_.store(shared.handle[w], record.handle[w]);
    // SYNC POINT (Directory::arena_bytes, Participant::arena): the incarnation last; it is never
    // used again, so a reader that finds it before and after its reads has read this record.
    directory_.store(shared.incarnation, ref.incarnation);
    own_arena_ = {ref, record.nbytes};
    arena_named_ = true;
  }

  // True when that arena was there and nobody alive, or oneself, owned it.
  bool forget_arena(ArenaRef arena, std::chrono::nanoseconds timeout) {
    u64& shared = directory_.view().arenas[arena.slot].incarnation;
    const Writing writing(*this, timeout);
    if (arena.incarnation == 0 || directory_.load(shared) != arena.incarnation) return false;
    if (own_arena_.nbytes != 0 && own_arena_.ref == arena) {
      forget_own_arena();
      return true;
    }
    if (directory_.alive(arena.slot)) return false;
    directory_.store(shared, 0);
    Reclaim<Policy>(directory_).discard_all_void();
    return true;
  }

 private:
  // The process mutex and the lock byte behind it, both or neither.
  class Writing {
   public:
    Writing(Membership& membership, std::chrono::nanoseconds timeout) : membership_(membership) {
      const Deadline deadline = Deadline::after(timeout);
      // The byte does not exclude threads of this process, the mutex does.
      membership.policy_.lock(membership.writer_mutex_, deadline, "writer");
      try {
        membership.policy_.acquire(lock_byte::kWriter, deadline, "writer");
      } catch (...) {
        membership.writer_mutex_.unlock();
        throw;
      }
    }
    ~Writing() {
      // SYNC POINT (Writing::Writing, in any process): every store made under the byte comes before
      // this call, and the kernel orders it before the next owner's return from acquire().
      membership_.policy_.release(lock_byte::kWriter);
      membership_.writer_mutex_.unlock();
    }
    Writing(const Writing&) = delete;
    Writing& operator=(const Writing&) = delete;

   private:
    Membership& membership_;
  };

  unsigned take_slot(Reclaim<Policy>& reclaim) {
    unsigned remembered = 0;
    for (unsigned slot = 0; slot < kMaxParticipants; ++slot) {
      // A dead owner's arena may still have a name that somebody has to unlink (dead_arenas).
      if (directory_.load(directory_.view().arenas[slot].incarnation) != 0) {
        ++remembered;
        continue;
      }
      // SYNC POINT (Membership::finish_leaving, Reclaim::run): taken under the writer byte. Whoever
      // reclaims holds it too, and so never finds the slot between dead and alive; whoever left gave
      // the byte back last, with nothing of theirs behind it.
      if (!policy_.try_acquire(lock_byte::kLiveness + slot)) continue;
      reclaim.clean_slot(slot);
      return slot;
    }
    throw NoFreeSlot("all " + std::to_string(kMaxParticipants) + " participant slots are taken, " +
                     std::to_string(remembered) +
                     " of them by arenas; end an engine, or free dead ones with `ec-ipc reap`");
  }

  void forget_own_arena() {
    if (own_arena_.nbytes == 0) return;
    directory_.store(directory_.view().arenas[own_arena_.ref.slot].incarnation, 0);
    own_arena_ = {};
    Reclaim<Policy>(directory_).discard_all_void();
  }

  void finish_leaving() {
    const auto slot = static_cast<unsigned>(directory_.slot());
    directory_.store(directory_.view().participants[slot].incarnation, 0);
    incarnation_.store(0);
    // SYNC POINT (Membership::take_slot): the byte after the last bit and the record, for from here
    // on the slot may be somebody else's.
    policy_.release(lock_byte::kLiveness + slot);
    // Our own view of it last: a join() of this handle must not lock the byte that we then unlock.
    directory_.set_slot(-1);
  }

  Policy& policy_;
  Directory<Policy> directory_;
  Holds<Policy> holds_;
  typename Policy::Mutex writer_mutex_;
  std::atomic<u64> incarnation_{0};
  // The own arena, guarded by writer_mutex_. `arena_named_` stays set after the arena was
  // forgotten: the participant's incarnation names one arena, once.
  OwnArena own_arena_{};
  bool arena_named_ = false;
  Ledger ledger_;
};

}  // namespace ec_ipc
