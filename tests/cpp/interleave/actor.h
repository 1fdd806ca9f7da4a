// An actor: a thread of a process of the model, and the operations it can do with the real code.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "explorer.h"
#include "membership.h"
#include "policy.h"

namespace interleave {

using Core = Membership<ModelPolicy>;

inline constexpr auto kPatience = std::chrono::seconds(1);
inline constexpr u64 kTtl = 1;  // of the clock of the model, which moves by tick() only

class Process {
 public:
  explicit Process(int number)
      : policy_(number), core_(policy_, explorer().world().view()), number_(number) {}
  Core& core() { return core_; }
  int number() const { return number_; }
  bool alive = true;
  // The counts and whatever else its threads share outside the segment.
  u64 hash();

 private:
  ModelPolicy policy_;
  Core core_;
  int number_;
};

class Actor {
 public:
  Actor(unsigned number, Process& process) : number_(number), process_(process) {}
  unsigned number() const { return number_; }
  Process& process() { return process_; }
  const Process& process() const { return process_; }

  // Operations. A request number names an announcement.
  void join();
  void join_if_out();
  void set_arena(unsigned units);
  void leave();
  void forget_arena(unsigned slot);
  // Reserve, the bytes, publish; nothing more when there is no place or somebody has it.
  void put(u64 key, u64 n = 1, bool deallocate = true, u64 at_publish = 0, u64 ttl = kTtl);
  bool reserve(u64 key, u64 n = 1, bool deallocate = true, u64 ttl = kTtl);
  void write();
  void publish(u64 at_publish = 0);
  void abort();
  void announce(u64 key, u64 n = 1, u64 ttl = kTtl);
  bool pin(u64 key);
  bool pin_token(Token token, u64 key);
  void unpin();
  // Takes back what this actor announced last, n of it.
  void settle(u64 n = 1);
  // Takes back the announcement of another actor, whose token comes by mail.
  void settle_of(unsigned giver, u64 n = 1);
  void settle_key(u64 key, u64 request);
  void find(u64 key);
  void maintain();
  void tick();
  void new_epoch();

  std::optional<Token> token;  // of the entry last reserved or announced
  u64 token_request = 0;       // and for which announcement
  std::vector<View> views;     // that this actor has
  Intent intent;
  // The scheduler's.
  Fiber fiber;
  u64 history = 0;  // all that was read since the operation began
  u64 operations = 0;
  u64 order = ~u64{0};  // see Truth::loaded
  unsigned waits_on = kPlaces;
  int waits_as = 0;
  bool waits_for_mail = false;
  const char* at = "";
  unsigned at_place = 0;
  u64 hash() const;

 private:
  void begin(const char* name, u64 key = 0);
  void view(const std::optional<Found>& found, u64 key);
  bool took(const Placement& placement);
  bool dead_writer_of(u64 key) const;

  unsigned number_;
  Process& process_;
  u64 offset_ = 0;
  u64 key_ = 0;
  u64 request_ = 0;
  u64 deadline_ = 0;
  std::vector<ArenaRef> arenas_at_begin_;
};

// A key whose digest differs from that of kTwin and has the same buckets and the same tag.
inline constexpr u64 kTwin = 11;
constexpr u64 twin_of_twin() {
  // What the second word adds to the hash, taken off the first; see probe().
  u64 inverse = 1;
  for (int i = 0; i < 6; ++i) inverse *= 2 - 0x9e3779b97f4a7c15ULL * inverse;
  return (kTwin * 0x9e3779b97f4a7c15ULL ^ std::rotl(u64{0xc2b2ae3d27d4eb4f}, 17)) * inverse;
}
inline constexpr u64 kOtherTwin = twin_of_twin();

inline Digest digest_of(u64 key) { return {key, key == kOtherTwin ? u64{1} : u64{0}, 0, 0}; }

}  // namespace interleave
