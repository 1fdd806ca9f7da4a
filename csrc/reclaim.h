// What gives back without being asked: dead participants, overdue announcements, void entries.
//
// Everything here runs under the writer byte.
#pragma once

#include "directory.h"

namespace ec_ipc {

struct Maintained {
  u64 expired = 0;
  u64 reclaimed = 0;
  u64 evicted = 0;
};

template <class Policy>
class Reclaim {
 public:
  explicit Reclaim(Directory<Policy>& directory) : d_(directory) {}

  Maintained run() {
    // SYNC POINT (Membership::take_slot): liveness is asked for after the writer byte was taken: a slot that
    // is dead now cannot be taken by somebody new before we have cleaned it.
    const u64 dead = dead_slots();
    Maintained done;
    for (u64 i = 0; i < d_.entry_count(); ++i) {
      if (d_.word(i).state == State::kFree) continue;
      if (dead != 0) done.reclaimed += clear_bits(i, dead);
      if (expire(i)) ++done.expired;
      if (discard_void(i, dead)) ++done.evicted;
    }
    forget_participants(dead);
    d_.count(kExpired, done.expired);
    d_.count(kReclaimed, done.reclaimed);
    d_.count(kEvicted, done.evicted);
    return done;
  }

  // Takes back what an earlier owner of the slot left behind.
  u64 clean_slot(unsigned slot) {
    u64 cleaned = 0;
    for (u64 i = 0; i < d_.entry_count(); ++i) cleaned += clear_bits(i, holder_bit(slot));
    d_.count(kReclaimed, cleaned);
    return cleaned;
  }

  // Frees what nobody can read any more in arenas that are gone. Call it after one was forgotten.
  u64 discard_all_void() {
    u64 discarded = 0;
    for (u64 i = 0; i < d_.entry_count(); ++i) discarded += discard_void(i, 0);
    d_.count(kEvicted, discarded);
    return discarded;
  }

  // The entry of a writer that died: WRITING -> FREE. The number of holds taken back.
  u64 clear_bits(u64 i, u64 dead) {
    const auto swapped =
        d_.swap(i, [&](Word w, bool deallocate) { return step::reclaim(w, dead, deallocate); });
    if (!swapped.done) return 0;
    return static_cast<u64>(std::popcount(swapped.before.holders & dead));
  }

  u64 dead_slots() const {
    u64 dead = 0;
    for (unsigned slot = 0; slot < kMaxParticipants; ++slot) {
      if (!d_.alive(slot)) dead |= holder_bit(slot);
    }
    return dead;
  }

 private:
  bool expire(u64 i) {
    return d_
        .swap(i,
              [&](Word w, bool deallocate) -> step::Next {
                const step::Next next = step::expire(w, deallocate);
                // SYNC POINT (Reserve::announce_on): the deadline is read after the word. An
                // announcement pushes the deadline before it changes the word, so either we see
                // the later deadline or our swap fails.
                if (!next || d_.load(d_.entry(i).deadline_ns) > d_.policy().now_ns()) return {};
                return next;
              })
        .done;
  }

  bool discard_void(u64 i, u64 dead) {
    const Word word = d_.word(i);
    if (word.damaged()) return d_.swap(i, [](Word w, bool) { return step::discard(w); }).done;
    if (!word.idle()) return false;
    // Under the writer byte an entry that is not FREE keeps its fields.
    const Fields f = d_.fields(i);
    const bool owner_dead = f.arena.slot < kMaxParticipants && (dead & holder_bit(f.arena.slot)) != 0;
    if (!owner_dead && !d_.void_for_ever(f)) return false;
    return d_.swap(i, [](Word w, bool) { return step::discard(w); }).done;
  }

  // After their bits: as long as a record stands, its slot still needs this.
  void forget_participants(u64 dead) {
    for (unsigned slot = 0; slot < kMaxParticipants; ++slot) {
      ParticipantSlot& record = d_.view().participants[slot];
      if ((dead & holder_bit(slot)) != 0 && d_.load(record.incarnation) != 0) d_.store(record.incarnation, 0);
    }
  }

  Directory<Policy>& d_;
};

}  // namespace ec_ipc
