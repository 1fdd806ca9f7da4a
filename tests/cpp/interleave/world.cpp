#include "world.h"

#include <cstdlib>

#include "check.h"

namespace interleave {
namespace {

alignas(64) u64 memory[kSegmentWords];

unsigned word_at(std::size_t offset) { return static_cast<unsigned>(offset / 8); }

struct Part {
  const char* name;
  std::size_t begin;
  std::size_t size;
  std::size_t count;
};
constexpr Part kParts[] = {
    {"header", 0, sizeof(Header), 1},
    {"participant", kGeometry.participants_offset, sizeof(ParticipantSlot), kMaxParticipants},
    {"arena", kGeometry.arenas_offset, sizeof(ArenaSlot), kMaxParticipants},
    {"tag", kGeometry.tags_offset, 8, kGeometry.entry_count / 2},
    {"entry", kGeometry.entries_offset, sizeof(EntrySlot), kGeometry.entry_count},
};

const char* field_of_entry(std::size_t offset) {
  switch (offset) {
    case offsetof(EntrySlot, word):
      return "word";
    case offsetof(EntrySlot, digest):
      return "digest";
    case offsetof(EntrySlot, arena):
      return "arena";
    case offsetof(EntrySlot, offset):
      return "offset";
    case offsetof(EntrySlot, nbytes):
      return "nbytes";
    case offsetof(EntrySlot, deadline_ns):
      return "deadline";
    case offsetof(EntrySlot, last_used_ns):
      return "last used";
    case offsetof(EntrySlot, reserve_sequence):
      return "sequence";
    case offsetof(EntrySlot, epoch):
      return "epoch";
    case offsetof(EntrySlot, flags):
      return "flags";
    default:
      return nullptr;
  }
}

}  // namespace

World::World()
    : segment_(memory),
      entry_of_word_(kPlaces, -1),
      never_meets_(kPlaces),
      readers_(kPlaces),
      writers_(kPlaces) {
  for (unsigned i = 0; i < kGeometry.entry_count; ++i) {
    entry_of_word_[word_at(kGeometry.entries_offset + i * sizeof(EntrySlot))] = static_cast<std::int16_t>(i);
  }
  for (unsigned place = 0; place < kPlaces; ++place) never_meets_[place] = never_meets(place);
  // Once: what fibers allocate does not last.
  dirty_.reserve(1 << 20);
}

void World::reset() {
  for (const unsigned place : dirty_) *word(place) = 0;
  dirty_.clear();
  hash_ = 0;
  mutexes_ = 0;
}

void World::set(unsigned place, u64 value) {
  u64& where = *word(place);
  if (where == value) return;
  if (!never_meets_[place]) {
    hash_ ^= (where != 0 ? mix(place + 1, where) : 0) ^ (value != 0 ? mix(place + 1, value) : 0);
  }
  where = value;
  dirty_.push_back(place);
}

void World::first_touch(std::uint32_t bit, unsigned place, bool writes) {
  (writes ? writers_ : readers_)[place] |= bit;
  const std::uint32_t all = readers_[place] | writers_[place];
  if (never_meets_[place] || meetings_[place] || writers_[place] == 0 || (all & (all - 1)) == 0) return;
  // From the next start on: an execution that is being repeated must take the same steps again.
  new_meetings_.set(place);
  found_new_ = true;
}

void World::start_over() {
  meetings_ |= new_meetings_;
  found_new_ = false;
}

void World::forget_meetings() {
  new_meetings_.reset();
  meetings_.reset();
  std::fill(readers_.begin(), readers_.end(), 0);
  std::fill(writers_.begin(), writers_.end(), 0);
  found_new_ = false;
}

// Statistics decide nothing. And of the words that are alike in every respect (of a digest, of a
// shape, of a role) one stands for all: they are written and read in one go.
bool World::never_meets(unsigned place) {
  if (place >= kSegmentWords) return false;
  const std::size_t at = place * 8;
  if (at < kGeometry.participants_offset) return at >= offsetof(Header, visitors);
  if (at < kGeometry.arenas_offset) {
    const std::size_t in = (at - kGeometry.participants_offset) % sizeof(ParticipantSlot);
    return in != offsetof(ParticipantSlot, incarnation);
  }
  if (at < kGeometry.tags_offset) {
    const std::size_t in = (at - kGeometry.arenas_offset) % sizeof(ArenaSlot);
    return in >= offsetof(ArenaSlot, kind);
  }
  if (at < kGeometry.entries_offset) return false;
  const std::size_t in = (at - kGeometry.entries_offset) % sizeof(EntrySlot);
  if (in > offsetof(EntrySlot, digest) && in < offsetof(EntrySlot, arena)) return true;
  return in > offsetof(EntrySlot, flags) && in != offsetof(EntrySlot, shape);
}

unsigned World::place_of_byte(std::int64_t byte) {
  return byte == lock_byte::kWriter ? kWriterPlace
                                    : kAlivePlace + static_cast<unsigned>(byte - lock_byte::kLiveness);
}

unsigned World::place_of_bytes(u64 incarnation, u64 offset) {
  if (incarnation >= kIncarnations || offset / kUnit >= kUnits) std::abort();
  return kBytesPlace + static_cast<unsigned>(incarnation * kUnits + offset / kUnit);
}

std::string World::name(unsigned place) {
  if (place >= kMailPlace) return "mail of actor " + std::to_string(place - kMailPlace);
  if (place >= kBytesPlace) return "bytes " + std::to_string(place - kBytesPlace);
  if (place >= kMutexPlace) return "mutex " + std::to_string(place - kMutexPlace);
  if (place == kClockPlace) return "clock";
  if (place >= kAlivePlace) return "liveness byte " + std::to_string(place - kAlivePlace);
  if (place == kWriterPlace) return "writer byte";
  const Part* part = kParts;
  while (place * 8 >= part->begin + part->size * part->count) ++part;
  const std::size_t in = place * 8 - part->begin;
  const char* field = part->size == sizeof(EntrySlot) ? field_of_entry(in % part->size) : nullptr;
  return std::string(part->name) + " " + std::to_string(in / part->size) + " " +
         (field != nullptr ? field : "+" + std::to_string(in % part->size));
}

}  // namespace interleave
