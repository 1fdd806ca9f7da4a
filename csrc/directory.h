// The directory: entries, their words, and every lock-free step on them.
//
// What runs under the writer byte builds on this and lies in reclaim.h and reserve.h. Every access
// to shared memory goes through the policy (policy.h).
#pragma once

#include <array>
#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "directory_index.h"
#include "entry_word.h"
#include "layout.h"

namespace ec_ipc {

struct Token {
  u64 entry;
  std::uint32_t generation;
};

// What an entry says beside its word. Stable while the word is not FREE and keeps its generation.
// Not initialised: a look-up writes all of it, and to clear it first would take as long.
struct Fields {
  Fields() {}
  Digest digest;
  ArenaRef arena;
  u64 offset;
  u64 nbytes;
  u64 epoch;
  u64 dtype;
  u64 rank;
  std::array<u64, kMaxRank> shape;
};

struct Found {
  Found() {}
  Token token;
  Word word;
  Fields fields;
};

// The number of elements, or nothing when it is more than `limit`.
constexpr std::optional<u64> shape_product(const std::array<u64, kMaxRank>& shape, u64 rank, u64 limit) {
  if (rank > kMaxRank) return std::nullopt;
  u64 product = 1;
  for (u64 i = 0; i < rank; ++i) {
    if (__builtin_mul_overflow(product, shape[i], &product) || product > limit) return std::nullopt;
  }
  return product;
}

// Word by word, for the reason that Directory::read_fields gives.
constexpr bool same(const Digest& a, const Digest& b) {
  u64 differs = 0;
  for (unsigned w = 0; w < a.size(); ++w) differs |= a[w] ^ b[w];
  return differs == 0;
}

template <class Policy>
class Directory {
 public:
  Directory(Policy& policy, const SegmentView& view) : policy_(policy), view_(view), index_(policy, view) {}

  // Which participant acts; -1 for a visitor that has not joined.
  void set_slot(int slot) { slot_.store(slot); }
  int slot() const { return slot_.load(); }
  u64 own_bit() const { return holder_bit(static_cast<unsigned>(slot())); }
  // One's own byte must not be asked for through one's own descriptor: alive by definition.
  bool alive(unsigned slot) const { return static_cast<int>(slot) == this->slot() || policy_.alive(slot); }

  const SegmentView& view() const { return view_; }
  Policy& policy() const { return policy_; }
  const DirectoryIndex<Policy>& index() const { return index_; }
  DirectoryIndex<Policy>& index() { return index_; }
  u64 entry_count() const { return view_.geometry.entry_count; }
  EntrySlot& entry(u64 i) const { return view_.entries[i]; }
  Word word(u64 i) const { return Word::unpack(load(entry(i).word)); }
  u64 load(const u64& shared) const { return policy_.load(shared); }
  void store(u64& shared, u64 value) const { policy_.store(shared, value); }
  u64 epoch() const { return load(view_.header->epoch); }

  u64 add(u64& shared, u64 n) const {
    u64 old = load(shared);
    while (!policy_.compare_exchange(shared, old, old + n)) {
    }
    return old + n;
  }
  void count(Counter counter, u64 n = 1) const {
    const int own = slot();
    CounterBlock& block =
        own < 0 ? view_.header->visitors : view_.participants[static_cast<unsigned>(own)].counters;
    if (n != 0) add(block.value[counter], n);
  }

  struct Swap {
    bool done;
    Word before;
    Word after;
    bool freed() const { return done && before.state != State::kFree && after.state == State::kFree; }
  };
  // Swaps the word for what next(word, deallocate) makes of it, until that succeeds or next
  // declines. The flag, and whatever else next reads, is read after the word in every turn.
  template <class Next>
  Swap swap(u64 i, Next&& next) const {
    EntrySlot& slot = entry(i);
    u64 bits = load(slot.word);
    for (;;) {
      const Word before = Word::unpack(bits);
      const bool deallocate = (load(slot.flags) & kFlagDeallocate) != 0;
      const std::optional<Word> after = next(before, deallocate);
      if (!after) return {false, before, before};
      if (*after == before || policy_.compare_exchange(slot.word, bits, after->pack())) {
        return {true, before, *after};
      }
    }
  }

  Digest digest(u64 i) const {
    const EntrySlot& slot = entry(i);
    return {load(slot.digest[0]), load(slot.digest[1]), load(slot.digest[2]), load(slot.digest[3])};
  }
  // Into their last place: a processor waits when words that it has just stored are copied as a block.
  void read_fields(u64 i, Fields& f) const {
    const EntrySlot& slot = entry(i);
    for (unsigned w = 0; w < f.digest.size(); ++w) f.digest[w] = load(slot.digest[w]);
    f.arena = ArenaRef::unpack(load(slot.arena));
    f.offset = load(slot.offset);
    f.nbytes = load(slot.nbytes);
    f.epoch = load(slot.epoch);
    f.dtype = load(slot.dtype);
    f.rank = load(slot.rank);
    for (unsigned d = 0; d < kMaxRank; ++d) f.shape[d] = load(slot.shape[d]);
  }
  Fields fields(u64 i) const {
    Fields f;
    read_fields(i, f);
    return f;
  }

  // The bytes of that arena, or nothing when it is gone or another has its slot.
  std::optional<u64> arena_bytes(ArenaRef arena) const {
    if (arena.slot >= kMaxParticipants || arena.incarnation == 0) return std::nullopt;
    const ArenaSlot& record = view_.arenas[arena.slot];
    if (load(record.incarnation) != arena.incarnation) return std::nullopt;
    const u64 nbytes = load(record.nbytes);
    // SYNC POINT (Membership::set_arena): incarnations are never used twice, so the same one
    // before and after says that nbytes belongs to it.
    if (load(record.incarnation) != arena.incarnation) return std::nullopt;
    return nbytes;
  }
  bool void_for_ever(const Fields& f) const { return f.epoch != epoch() || !arena_bytes(f.arena); }
  // Whether a reader can do anything with it. Numbers that make no sense are as good as absent.
  bool readable(const Fields& f) const {
    if (f.epoch != epoch()) return false;
    const std::optional<u64> arena = arena_bytes(f.arena);
    if (!arena || f.nbytes > *arena || f.offset > *arena - f.nbytes) return false;
    return makes_sense(f);
  }
  // Nothing is reserved without bytes, and a view of none cannot be made.
  bool makes_sense(const Fields& f) const {
    return f.nbytes != 0 && shape_product(f.shape, f.rank, f.nbytes).has_value();
  }

  // One entry as of one moment; false when it is FREE.
  bool snapshot(u64 i, Found& found) const {
    u64 bits = load(entry(i).word);
    for (;;) {
      const Word word = Word::unpack(bits);
      if (word.state == State::kFree || word.damaged()) return false;
      found.token = {i, word.generation};
      found.word = word;
      read_fields(i, found.fields);
      // SYNC POINT (Reserve::take): fields are written while the word is FREE only, so the same
      // state and generation on both sides of the reads belong to the same reservation.
      bits = load(entry(i).word);
      if (Word::unpack(bits).is(word.state, word.generation)) return true;
    }
  }

  std::optional<Found> snapshot(u64 i) const {
    std::optional<Found> found(std::in_place);
    if (!snapshot(i, *found)) found.reset();
    return found;
  }

  // The READY entry with this key or else the one being written. Takes no lock, changes nothing.
  std::optional<Found> find(const Digest& key) const {
    std::optional<Found> ready(std::in_place);
    std::optional<Found> writing;
    const bool found = index_.visit_tagged(index_.locate(key), [&](u64 i) {
      if (!snapshot(i, *ready) || !same(ready->fields.digest, key) || !readable(ready->fields)) return false;
      if (ready->word.state == State::kReady) return true;
      writing = ready;
      return false;
    });
    if (!found) ready = writing;
    return ready;
  }

  bool contains(u64 i) const { return i < entry_count(); }

  // WRITING -> READY, with the announcements that arrived while it was written.
  bool publish(Token token, u64 announced) const {
    // Asked for once: another thread may be leaving.
    const int own = slot();
    if (!contains(token.entry) || own < 0) return false;
    EntrySlot& e = entry(token.entry);
    const u64 bit = holder_bit(static_cast<unsigned>(own));
    const Word before = word(token.entry);
    if (!before.is(State::kWriting, token.generation) || before.holders != bit) return false;
    const u64 nbytes = load(e.nbytes);
    store(e.last_used_ns, policy_.now_ns());
    // SYNC POINT (Directory::set_bit): the bytes were written before this swap; a reader reads them after
    // its own swap has seen READY.
    const Swap swapped = swap(token.entry, [&](Word w, bool deallocate) {
      return step::publish(w, token.generation, bit, announced, deallocate);
    });
    if (!swapped.done) return false;
    count(kPublished);
    count(kBytesPublished, nbytes);
    if (swapped.freed()) count(kFreedByLastReader);
    return true;
  }

  bool abort(Token token) const {
    const int own = slot();
    if (!contains(token.entry) || own < 0) return false;
    const u64 bit = holder_bit(static_cast<unsigned>(own));
    return swap(token.entry, [&](Word w, bool) { return step::abort(w, token.generation, bit); }).done;
  }

  bool settle(Token token, u64 n) const {
    if (!contains(token.entry)) return false;
    const Swap swapped = swap(token.entry, [&](Word w, bool deallocate) {
      return step::settle(w, token.generation, n, deallocate);
    });
    if (swapped.freed()) count(kFreedByLastReader);
    if (!swapped.done) count(kLateReleases);
    return swapped.done;
  }

  // Sets the own bit of a READY entry and only then looks whether it is the one that was meant.
  // Not for direct use: Holds counts the views of this process.
  // `shared`: somebody is to hold it already, and for as long its bytes are there, whatever has
  // become of its arena's record and of the epoch.
  bool set_bit(u64 i, const Digest* key, std::optional<std::uint32_t> generation, bool shared,
               Found& found) const {
    const u64 bit = own_bit();
    const Swap pinned = swap(i, [&](Word w, bool) -> std::optional<Word> {
      if (generation && w.generation != *generation) return std::nullopt;
      if (shared && w.holders == 0) return std::nullopt;
      return step::pin(w, bit);
    });
    if (!pinned.done) return false;
    // SYNC POINT (Reserve::take, Directory::publish): the swap saw READY, so the item's bytes are
    // complete, and from the swap to the unpin nobody can reuse the entry. What was
    // read before the swap may be of an earlier life; what is read now is of this one.
    if (read_held({i, pinned.after.generation}, pinned.after, key, shared, found)) return true;
    clear_bit(found.token);
    return false;
  }
  // What we hold already, so that it stands still; false when it is not what was meant, or of no use.
  bool read_held(Token token, Word word, const Digest* key, bool shared, Found& found) const {
    found.token = token;
    found.word = word;
    read_fields(token.entry, found.fields);
    if (key != nullptr && !same(found.fields.digest, *key)) return false;
    return shared ? makes_sense(found.fields) : readable(found.fields);
  }

  bool clear_bit(Token token) const {
    const u64 bit = own_bit();
    const Swap swapped = swap(token.entry, [&](Word w, bool deallocate) {
      return step::unpin(w, token.generation, bit, deallocate);
    });
    if (swapped.freed()) count(kFreedByLastReader);
    if (!swapped.done) count(kLateReleases);
    return swapped.done;
  }

 private:
  Policy& policy_;
  SegmentView view_;
  DirectoryIndex<Policy> index_;
  std::atomic<int> slot_{-1};
};

}  // namespace ec_ipc
