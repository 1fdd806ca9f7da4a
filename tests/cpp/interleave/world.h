// What the processes of the model share: the segment, the arenas' bytes, the kernel's locks, time.
//
// Every access comes through here. A place that two actors touch, one of them writing, is a place
// where actors can meet: there an actor gives the word to the scheduler before it goes on. Accesses to
// any other place commute with everything the others do, so there is nothing to schedule. Which places
// those are is found out while exploring (World::touch).
#pragma once

#include <bitset>
#include <cstring>
#include <string>
#include <vector>

#include "layout.h"
#include "liveness.h"

namespace interleave {

using namespace ec_ipc;

constexpr u64 mix(u64 hash, u64 value) {
  hash = ((hash ^ value) + 0x632be59bd9b4e019ULL) * 0x9e3779b97f4a7c15ULL;
  hash = (hash ^ hash >> 29) * 0xbf58476d1ce4e5b9ULL;
  return hash ^ hash >> 32;
}

inline constexpr u64 kUnit = kAlignment;  // items of the model have this size
inline constexpr unsigned kUnits = 4;     // at most, in an arena
inline constexpr unsigned kIncarnations = 16;
inline constexpr int kNobody = -1;
inline constexpr unsigned kFinale = 31;  // who acts when all actors have ended

constexpr Geometry small_geometry() {
  Geometry g = Geometry::of(kBucketEntries);
  // Never full by number: scenarios are about single entries.
  g.max_items = 2 * g.entry_count;
  return g;
}
inline constexpr Geometry kGeometry = small_geometry();

// Places: the words of the segment, then what else is shared.
inline constexpr unsigned kSegmentWords = kGeometry.total_bytes / 8;
inline constexpr unsigned kWriterPlace = kSegmentWords;
inline constexpr unsigned kAlivePlace = kWriterPlace + 1;
inline constexpr unsigned kClockPlace = kAlivePlace + kMaxParticipants;
inline constexpr unsigned kMutexPlace = kClockPlace + 1;
inline constexpr unsigned kMutexes = 24;
inline constexpr unsigned kBytesPlace = kMutexPlace + kMutexes;
inline constexpr unsigned kMailPlace = kBytesPlace + kIncarnations * kUnits;
inline constexpr unsigned kPlaces = kMailPlace + 8;

class World {
 public:
  World();

  // Back to an empty segment.
  void reset();
  SegmentView view() { return SegmentView::of(segment_, kGeometry); }

  // Called before every access. True: the actor must give the word to the scheduler first.
  bool touch(unsigned actor, unsigned place, bool writes) {
    const std::uint32_t bit = 1u << actor;
    if (((writes ? writers_ : readers_)[place] & bit) == 0) first_touch(bit, place, writes);
    return meetings_[place];
  }
  bool is_meeting(unsigned place) const { return meetings_[place]; }
  // Whether a new meeting place was found: the exploration starts again with it.
  bool found_new() const { return found_new_; }
  void start_over();
  void forget_meetings();
  std::size_t meetings() const { return meetings_.count(); }

  u64 get(unsigned place) const { return *word(place); }
  void set(unsigned place, u64 value);
  unsigned place_of(const u64& shared) const { return static_cast<unsigned>(&shared - segment_); }
  u64 hash() const { return hash_; }

  u64 now() const { return get(kClockPlace); }
  int owner(unsigned place) const { return static_cast<int>(get(place)) - 1; }
  void set_owner(unsigned place, int process) { set(place, static_cast<u64>(process + 1)); }
  bool alive(unsigned slot) const { return owner(kAlivePlace + slot) != kNobody; }
  static unsigned place_of_byte(std::int64_t byte);
  static unsigned place_of_bytes(u64 incarnation, u64 offset);
  unsigned new_mutex() { return kMutexPlace + mutexes_++; }

  static std::string name(unsigned place);
  // The entry whose word this is, or -1.
  int entry_of_word(unsigned place) const { return entry_of_word_[place]; }

 private:
  void first_touch(std::uint32_t bit, unsigned place, bool writes);
  u64* word(unsigned place) const {
    return place < kSegmentWords ? segment_ + place : const_cast<u64*>(other_) + (place - kSegmentWords);
  }
  static bool never_meets(unsigned place);

  u64* segment_;
  u64 other_[kPlaces - kSegmentWords] = {};
  std::vector<unsigned> dirty_;
  u64 hash_ = 0;
  unsigned mutexes_ = 0;
  std::bitset<kPlaces> meetings_;
  std::bitset<kPlaces> new_meetings_;
  std::vector<std::int16_t> entry_of_word_;
  std::vector<char> never_meets_;
  std::vector<std::uint32_t> readers_;
  std::vector<std::uint32_t> writers_;
  bool found_new_ = false;
};

}  // namespace interleave
