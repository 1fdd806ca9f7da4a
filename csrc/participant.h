// One handle on a segment and, after join(), one participant in it: locks, local counts and the
// directory put together. Everything may be called from any thread.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "directory.h"
#include "errors.h"
#include "liveness.h"
#include "membership.h"
#include "policy.h"
#include "segment.h"

namespace ec_ipc {

struct ParticipantRecord {
  unsigned slot = 0;
  u64 incarnation = 0;
  u64 pid = 0;
  u64 engine = 0;
  Words<kRoleBytes> role{};
  bool alive = false;
};

// Throws std::invalid_argument when the text does not fit.
Words<kRoleBytes> pack_role(const std::string& role);
std::string unpack_role(const Words<kRoleBytes>& role);

class Participant {
 public:
  explicit Participant(int fd);  // owns fd, also when this throws
  ~Participant();
  Participant(const Participant&) = delete;
  Participant& operator=(const Participant&) = delete;

  const Segment& segment() const { return segment_; }
  int fd() const;
  int slot() const { return membership_.slot(); }
  u64 incarnation() const { return membership_.incarnation(); }
  u64 holds();

  unsigned join(const std::string& role, u64 engine, std::chrono::nanoseconds timeout);
  bool leave(std::chrono::nanoseconds timeout);
  bool anyone_else() const;

  std::optional<Found> find(const Digest& key) const;
  std::optional<Found> snapshot(u64 entry) const;
  Placement reserve(const Request& request, std::chrono::nanoseconds timeout);
  Placement announce(const Digest& key, u64 n, u64 ttl_ns, std::chrono::nanoseconds timeout);
  bool fits(unsigned arena_slot, u64 nbytes) const;
  bool publish(Token token, u64 announced);
  bool abort(Token token);
  bool settle(Token token, u64 n);
  bool settle(const Digest& key, u64 n);

  std::optional<Found> pin(const Digest& key);
  std::optional<Found> pin(Token token);
  std::optional<Found> pin_shared(Token token);
  bool readable(const Fields& fields) const;
  // Never throws and does nothing in a forked child: destructors call it.
  void unpin(Token token) noexcept;

  Maintained maintain(std::chrono::nanoseconds timeout);

  void set_arena(const ArenaRecord& record, std::chrono::nanoseconds timeout);
  std::optional<ArenaRecord> arena(unsigned slot) const;
  bool owner_alive(unsigned arena_slot) const;
  u64 arena_used(unsigned slot) const;
  bool forget_arena(ArenaRef arena, std::chrono::nanoseconds timeout);
  void mark_mapped(unsigned arena_slot, u64 incarnation);
  u64 mapped_by(u64 engine, const std::string& role, ArenaRef arena) const;

  std::vector<ParticipantRecord> participants() const;
  u64 total_holds() const;
  std::array<u64, kMaxParticipants> holds_by_slot() const;
  void count(Counter counter, u64 n);
  u64 counter(Counter counter) const;
  u64 counter_of(unsigned slot, Counter counter) const;
  u64 pressure() const;
  void set_pressure(u64 value);
  u64 epoch() const;
  u64 bump_epoch();

  // In the child of a fork, before anything else runs there.
  void orphan() noexcept;

 private:
  void check_not_forked() const;
  void check_joined() const;
  const ArenaSlot& arena_slot(unsigned slot) const;

  Segment segment_;
  SystemPolicy policy_;
  Membership<SystemPolicy> membership_;
  Directory<SystemPolicy>& directory_;  // the membership's
  std::atomic<bool> forked_{false};
};

// One counted hold; gives it back when it dies.
class Hold {
 public:
  Hold(std::shared_ptr<Participant> participant, const Found& found)
      : participant_(std::move(participant)), found_(found) {}
  Hold(Hold&&) noexcept = default;
  Hold& operator=(Hold&&) = delete;
  ~Hold() { release(); }

  const Found& found() const { return found_; }
  // Whether a look-up would still lead to it: its arena is there, and its epoch has not passed.
  bool current() const { return participant_ != nullptr && participant_->readable(found_.fields); }
  bool released() const { return participant_ == nullptr; }
  void release() noexcept {
    if (participant_ != nullptr) participant_->unpin(found_.token);
    participant_.reset();
  }

 private:
  std::shared_ptr<Participant> participant_;
  Found found_;
};

}  // namespace ec_ipc
