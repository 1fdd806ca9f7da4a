#include "truth.h"

#include <algorithm>
#include <bit>

#include "directory_index.h"

namespace interleave {
namespace {

constexpr unsigned kEntryWords = sizeof(EntrySlot) / 8;

unsigned word_place(u64 entry) {
  return static_cast<unsigned>(kGeometry.entries_offset / 8 + entry * kEntryWords);
}
}  // namespace

void Truth::reset() {
  announced_ = {};
  announced_.reserve(64);
  views_ = {};
  views_.reserve(64);
  lives_ = {};
  lives_.reserve(64);
  std::fill(std::begin(keys_), std::end(keys_), 0);
  dead_ = 0;
  wrong_ = {};
}

bool Truth::arena_is_there(ArenaRef arena) const {
  return view_.arenas[arena.slot].incarnation == arena.incarnation && world_.alive(arena.slot);
}

u64 Truth::live_announcements(u64 i, std::uint32_t generation) const {
  u64 live = 0;
  for (const Announcement& a : announced_) {
    if (a.entry == i && a.generation == generation && a.deadline > world_.now()) live += a.n;
  }
  return live;
}

void Truth::word_changed(u64 i, u64 before_bits, u64 after_bits, const Intent& intent) {
  const Word before = Word::unpack(before_bits);
  const Word after = Word::unpack(after_bits);
  const auto expect_at = [&](bool holds, const char* what) { expect(holds, what, i); };
  const bool fresh = before.state == State::kFree;
  if (fresh) {
    reserved(i, after, intent);
  } else if (intent.announces != 0 && intent.key == keys_[i] && after.announced != before.announced) {
    expect_at(entry(i).deadline_ns >= intent.deadline, "announced before its deadline was pushed: entry");
  }
  if (!fresh && after.announced > before.announced) {
    expect_at(intent.announces != 0, "announcements out of nowhere: entry");
    expect_at(intent.key == keys_[i], "announced on an entry of another key: entry");
  }
  // Also when a full counter does not move, and when publish frees at once what it announced.
  const bool announces = fresh || after.announced > before.announced || before.announced == kMaxAnnounced;
  if (announces && intent.announces != 0 && after.state != State::kFree) {
    announced_.push_back({intent.request, i, after.generation, intent.announces, intent.deadline});
  }
  if (intent.settles != 0) {
    std::erase_if(announced_, [&](const Announcement& a) {
      return a.request == intent.settles && a.entry == i && a.generation == before.generation;
    });
  }
  const u64 live = live_announcements(i, after.generation);
  const ArenaRef arena = ArenaRef::unpack(entry(i).arena);
  const bool readable = arena_is_there(arena) && entry(i).epoch == view_.header->epoch;
  if (after.state == State::kFree) {
    expect_at(live == 0 || before.state == State::kWriting || !readable, "freed while announced: entry");
    std::erase_if(announced_, [&](const Announcement& a) { return a.entry == i; });
    expect_at(after.announced == 0 && after.holders == 0, "FREE with a count: entry");
  } else if (after.announced < before.announced) {
    expect_at(live <= after.announced, "an announcement was taken that somebody waits for: entry");
  }
  if (!fresh) expect_at(after.generation == before.generation, "another generation of the same life: entry");
  const bool deallocate = (entry(i).flags & kFlagDeallocate) != 0;
  expect_at(!(after.idle() && after.announced == 0 && deallocate), "READY and needed by nobody: entry");
  expect_at(after.state != State::kWriting || std::popcount(after.holders) == 1, "WRITING by several: entry");
}

void Truth::reserved(u64 i, const Word& after, const Intent& intent) {
  const EntrySlot& mine = entry(i);
  keys_[i] = intent.key;
  lives_.push_back({i, after.generation, intent.key});
  expect(after.state == State::kWriting, "leaves FREE otherwise than to WRITING: entry", i);
  const u64 tag = view_.tags[i / 2] >> (i % 2 == 0 ? 0 : 32) & 0xffffffff;
  expect(tag == probe(mine.digest, kGeometry.entry_count / kBucketEntries).tag,
         "reserved with the tag of an earlier life: entry", i);
  expect(mine.digest[0] == intent.key, "reserved with the digest of an earlier life: entry", i);
  expect(mine.deadline_ns >= intent.deadline, "reserved with the deadline of an earlier life: entry", i);
  const ArenaRef arena = ArenaRef::unpack(mine.arena);
  expect(arena_is_there(arena), "reserved in an arena that is not there: entry", i);
  for (const View& v : views_) expect(v.entry != i, "reserved under a live view: entry", i);
  for (u64 j = 0; j < kGeometry.entry_count; ++j) {
    const EntrySlot& other = entry(j);
    const Word w = Word::unpack(other.word);
    if (j == i || w.state == State::kFree) continue;
    const bool overlap = mine.offset < other.offset + align_up(other.nbytes) &&
                         other.offset < mine.offset + align_up(mine.nbytes);
    expect(other.arena != mine.arena || !overlap, "its extent overlaps that of another: entry", i);
    const bool dead_writer = w.state == State::kWriting && !world_.alive(static_cast<unsigned>(w.writer()));
    const bool readable = arena_is_there(ArenaRef::unpack(other.arena)) && other.epoch == view_.header->epoch;
    expect(keys_[j] != keys_[i] || !readable || dead_writer, "has the same key as another: entry", i);
  }
}

void Truth::check_expiry(u64 i, u64 before_bits, u64 after_bits, u64 order, const Intent& intent) {
  const Word before = Word::unpack(before_bits);
  const Word after = Word::unpack(after_bits);
  if (before.announced == 0 || after.announced != 0 || before.holders != 0 || intent.settles != 0) return;
  const ArenaRef arena = ArenaRef::unpack(entry(i).arena);
  if (!arena_is_there(arena) || entry(i).epoch != view_.header->epoch) return;
  expect(order == (i << 1 | 1), "expired by a deadline that was read before the word: entry", i);
}

void Truth::before_store(unsigned place, u64 value) {
  // Whoever may read the fields of an entry relies on them to stand still.
  if (place < word_place(0) || place >= kSegmentWords) return;
  const u64 i = (place - word_place(0)) / kEntryWords;
  const std::size_t in = (place - word_place(i)) * 8;
  if (in == 0 || in == offsetof(EntrySlot, deadline_ns) || in == offsetof(EntrySlot, last_used_ns)) return;
  const bool is_free = Word::unpack(entry(i).word).state == State::kFree;
  expect(is_free || world_.get(place) == value, "a field is written while it is not FREE: entry", i);
}

void Truth::before_release_of_slot(unsigned slot) {
  for (u64 i = 0; i < kGeometry.entry_count; ++i) {
    expect((Word::unpack(entry(i).word).holders & holder_bit(slot)) == 0, "given up with a hold left: slot",
           slot);
  }
}

void Truth::check_found(u64 entry, std::uint32_t generation, u64 key) {
  for (const Life& life : lives_) {
    if (life.entry == entry && life.generation == generation) {
      expect(life.key == key, "found under a key that it did not have: entry", entry);
    }
  }
}

void Truth::begin_view(const View& view) {
  views_.push_back(view);
  check_views();
}

void Truth::end_view(const View& view) {
  const auto found = std::find_if(views_.begin(), views_.end(), [&](const View& v) {
    return v.actor == view.actor && v.entry == view.entry && v.generation == view.generation;
  });
  if (found != views_.end()) views_.erase(found);
}

void Truth::process_died(int process) {
  dead_ |= u64{1} << process;
  std::erase_if(views_, [&](const View& v) { return v.process == process; });
}

void Truth::check_views() {
  for (const View& v : views_) {
    const Word w = Word::unpack(entry(v.entry).word);
    expect(w.is(State::kReady, v.generation), "freed under a live view: entry", v.entry);
    expect(keys_[v.entry] == v.key, "a view of another key: entry", v.entry);
    expect(world_.get(World::place_of_bytes(v.arena.incarnation, v.offset)) == v.key,
           "wrong bytes under a view: entry", v.entry);
  }
}

void Truth::check_end(bool writing_is_fine) {
  check_views();
  for (u64 i = 0; i < kGeometry.entry_count; ++i) {
    const Word w = Word::unpack(entry(i).word);
    if (w.state == State::kFree) continue;
    expect(w.state != State::kWriting || writing_is_fine, "WRITING for ever: entry", i);
    u64 viewers = 0;
    for (unsigned slot = 0; slot < kMaxParticipants; ++slot) {
      const int process = process_in_slot(slot);
      if (process == kNobody) continue;
      for (const View& v : views_) {
        if (v.process == process && v.entry == i) viewers |= holder_bit(slot);
      }
    }
    expect(w.state == State::kWriting || w.holders == viewers,
           "held without a view, or a view without a hold: entry", i);
    const bool deallocate = (entry(i).flags & kFlagDeallocate) != 0;
    expect(w.holders != 0 || !deallocate, "needed by nobody and never freed: entry", i);
    expect(w.holders != 0 || arena_is_there(ArenaRef::unpack(entry(i).arena)),
           "stays in an arena that is gone: entry", i);
  }
  for (unsigned slot = 0; slot < kMaxParticipants; ++slot) {
    expect(view_.participants[slot].incarnation == 0 || world_.alive(slot),
           "its record outlives the participant: slot", slot);
  }
}

std::size_t Truth::views_of(int process) const {
  return static_cast<std::size_t>(
      std::count_if(views_.begin(), views_.end(), [&](const View& v) { return v.process == process; }));
}

u64 Truth::hash() const {
  u64 sum = dead_;
  for (const Announcement& a : announced_) {
    sum += mix(mix(mix(a.request, a.entry), a.generation), mix(a.n, a.deadline));
  }
  for (const View& v : views_) sum += mix(mix(v.actor + 1, v.entry), v.generation);
  return sum;
}

}  // namespace interleave
