// What ought to be so, kept beside the segment and never read by the code under test.
//
// Follows every change of every entry's word and every view, and says what is wrong the moment it
// is: a view on bytes that may be reused, an announcement that is lost or stolen, two entries with one
// key, extents that overlap.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "entry_word.h"
#include "world.h"

namespace interleave {

// What the operation that is under way is for.
struct Intent {
  const char* name = "";
  u64 key = 0;
  u64 announces = 0;  // so many, under this request number
  u64 request = 0;
  u64 ttl = 0;                   // of what is announced
  u64 deadline = 0;              // hence this, by the clock as it was read last
  u64 settles = 0;               // this request
  bool writer_was_dead = false;  // of this key, when the operation began

  // Part of the state: what is expected of an operation depends on when it began.
  u64 hash() const {
    return mix(mix(mix(key, announces), mix(request, deadline)), mix(settles, u64{writer_was_dead}));
  }
};

struct View {
  unsigned actor;
  int process;
  u64 entry;
  std::uint32_t generation;
  u64 key;
  ArenaRef arena;
  u64 offset;
};

class Truth {
 public:
  explicit Truth(World& world) : world_(world) {}
  void reset();

  // After a swap of an entry's word, or a store into the segment.
  void word_changed(u64 entry, u64 before, u64 after, const Intent& intent);
  void before_store(unsigned place, u64 value);
  void before_release_of_slot(unsigned slot);
  // The first thing that is wrong counts. A number says which entry, slot or actor it is about.
  void expect(bool holds, const char* what, u64 number = ~u64{0}) {
    if (holds || !wrong_.empty()) return;
    wrong_ = what;
    if (number != ~u64{0}) wrong_ += ": " + std::to_string(number);
  }
  // A read of a deadline or a word by somebody who may expire the entry next.
  void loaded(unsigned place, u64& order) const {
    // The last entry whose word was read, and whether its deadline was read since.
    constexpr unsigned kFirst = kGeometry.entries_offset / 8;
    constexpr unsigned kWords = sizeof(EntrySlot) / 8;
    if (place < kFirst || place >= kSegmentWords) return;
    if (const int i = world_.entry_of_word(place); i >= 0) order = static_cast<u64>(i) << 1;
    const u64 deadline = kFirst + (order >> 1) * kWords + offsetof(EntrySlot, deadline_ns) / 8;
    if (order != ~u64{0} && place == deadline) order |= 1;
  }
  void check_expiry(u64 entry, u64 before, u64 after, u64 order, const Intent& intent);

  // A look-up said that this life of the entry has that key.
  void check_found(u64 entry, std::uint32_t generation, u64 key);
  void begin_view(const View& view);
  void end_view(const View& view);
  void process_died(int process);
  // After each step.
  void check_views();
  // When everybody has ended and all has been maintained. `writing_is_fine`: an actor meant to leave one.
  void check_end(bool writing_is_fine);

  const std::string& wrong() const { return wrong_; }
  u64 hash() const;
  std::size_t views_of(int process) const;
  // Whether that process was killed, and not merely gone.
  bool died(int process) const { return (dead_ >> process & 1) != 0; }
  int process_in_slot(unsigned slot) const { return world_.owner(kAlivePlace + slot); }

 private:
  struct Announcement {
    u64 request;
    u64 entry;
    std::uint32_t generation;
    u64 n;
    u64 deadline;
    bool operator==(const Announcement&) const = default;
  };
  const EntrySlot& entry(u64 i) const { return view_.entries[i]; }
  bool arena_is_there(ArenaRef arena) const;
  u64 live_announcements(u64 i, std::uint32_t generation) const;
  void reserved(u64 i, const Word& after, const Intent& intent);

  World& world_;
  SegmentView view_ = world_.view();
  std::vector<Announcement> announced_;
  std::vector<View> views_;
  struct Life {
    u64 entry;
    std::uint32_t generation;
    u64 key;
  };
  std::vector<Life> lives_;
  u64 keys_[kGeometry.entry_count] = {};  // by entry, of its present life
  u64 dead_ = 0;
  std::string wrong_;
};

}  // namespace interleave
