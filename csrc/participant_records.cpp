// The records beside the entries: arenas, participants, and sums over all of them.
#include <bit>

#include "participant.h"

namespace ec_ipc {

const ArenaSlot& Participant::arena_slot(unsigned slot) const {
  check_not_forked();
  if (slot >= kMaxParticipants) {
    throw std::invalid_argument("the arena slot is " + std::to_string(slot) + ", but must be 0 to " +
                                std::to_string(kMaxParticipants - 1));
  }
  return segment_.view().arenas[slot];
}

void Participant::set_arena(const ArenaRecord& record, std::chrono::nanoseconds timeout) {
  if (record.nbytes == 0 || record.nbytes > u64{1} << 62) {
    throw std::invalid_argument("the arena has " + std::to_string(record.nbytes) +
                                " bytes, but must have 1 to 2**62");
  }
  check_not_forked();
  membership_.set_arena(record, timeout);
}

std::optional<ArenaRecord> Participant::arena(unsigned slot) const {
  const ArenaSlot& shared = arena_slot(slot);
  const u64 incarnation = directory_.load(shared.incarnation);
  if (incarnation == 0) return std::nullopt;
  ArenaRecord record;
  record.ref = {slot, incarnation};
  record.nbytes = directory_.load(shared.nbytes);
  record.kind = directory_.load(shared.kind);
  record.canary = directory_.load(shared.canary);
  for (unsigned w = 0; w < record.device.size(); ++w) record.device[w] = directory_.load(shared.device[w]);
  for (unsigned w = 0; w < record.handle.size(); ++w) record.handle[w] = directory_.load(shared.handle[w]);
  if (directory_.load(shared.incarnation) != incarnation) return std::nullopt;
  return record;
}

bool Participant::owner_alive(unsigned arena_slot) const {
  check_not_forked();
  return directory_.alive(arena_slot);
}

u64 Participant::arena_used(unsigned slot) const {
  const ArenaRef ref{slot, directory_.load(arena_slot(slot).incarnation)};
  u64 used = 0;
  for (u64 i = 0; i < directory_.entry_count(); ++i) {
    if (directory_.word(i).state == State::kFree) continue;
    const EntrySlot& e = directory_.entry(i);
    if (directory_.load(e.arena) == ref.pack()) used += align_up(directory_.load(e.nbytes));
  }
  return used;
}

bool Participant::fits(unsigned slot, u64 nbytes) const {
  const u64 incarnation = directory_.load(arena_slot(slot).incarnation);
  const std::optional<u64> arena = directory_.arena_bytes({slot, incarnation});
  if (!arena || nbytes > *arena) return false;
  const u64 ref = ArenaRef{slot, incarnation}.pack();
  const u64 now = policy_.now_ns();
  std::vector<Extent> needed;
  for (u64 i = 0; i < directory_.entry_count(); ++i) {
    const Word w = directory_.word(i);
    if (w.state == State::kFree) continue;
    const EntrySlot& e = directory_.entry(i);
    if (directory_.load(e.arena) != ref) continue;
    const bool overdue = directory_.load(e.deadline_ns) <= now;
    const bool stale = directory_.load(e.epoch) != directory_.epoch();
    if (w.idle() && (w.announced == 0 || overdue || stale)) continue;
    const u64 begin = std::min(directory_.load(e.offset), *arena);
    const u64 length = std::min(directory_.load(e.nbytes), *arena);
    needed.push_back({begin, std::min(begin + align_up(length), *arena), i});
  }
  sort_extents(needed);
  return first_fit(needed, *arena, align_up(nbytes)).has_value();
}

bool Participant::forget_arena(ArenaRef arena, std::chrono::nanoseconds timeout) {
  arena_slot(arena.slot);  // in range, and not in a forked child
  return membership_.forget_arena(arena, timeout);
}

void Participant::mark_mapped(unsigned slot, u64 incarnation) {
  arena_slot(slot);
  check_joined();
  auto& record = segment_.view().participants[static_cast<unsigned>(this->slot())];
  directory_.store(record.mapped[slot], incarnation);
}

u64 Participant::mapped_by(u64 engine, const std::string& role, ArenaRef arena) const {
  arena_slot(arena.slot);
  const Words<kRoleBytes> packed = pack_role(role);
  u64 count = 0;
  for (unsigned slot = 0; slot < kMaxParticipants; ++slot) {
    const ParticipantSlot& record = segment_.view().participants[slot];
    const u64 incarnation = directory_.load(record.incarnation);
    if (incarnation == 0 || directory_.load(record.engine) != engine) continue;
    bool same = directory_.load(record.mapped[arena.slot]) == arena.incarnation;
    for (unsigned w = 0; w < packed.size(); ++w) same = same && directory_.load(record.role[w]) == packed[w];
    if (same && directory_.load(record.incarnation) == incarnation) ++count;
  }
  return count;
}

std::vector<ParticipantRecord> Participant::participants() const {
  check_not_forked();
  std::vector<ParticipantRecord> records;
  for (unsigned slot = 0; slot < kMaxParticipants; ++slot) {
    const ParticipantSlot& shared = segment_.view().participants[slot];
    ParticipantRecord record;
    record.slot = slot;
    record.incarnation = directory_.load(shared.incarnation);
    if (record.incarnation == 0) continue;
    record.pid = directory_.load(shared.pid);
    record.engine = directory_.load(shared.engine);
    for (unsigned w = 0; w < record.role.size(); ++w) record.role[w] = directory_.load(shared.role[w]);
    record.alive = directory_.alive(slot);
    // SYNC POINT (Membership::join): the same incarnation on both sides, hence one record.
    if (directory_.load(shared.incarnation) == record.incarnation) records.push_back(record);
  }
  return records;
}

u64 Participant::total_holds() const {
  check_not_forked();
  u64 holds = 0;
  for (u64 i = 0; i < directory_.entry_count(); ++i) {
    holds += static_cast<u64>(std::popcount(directory_.word(i).holders));
  }
  return holds;
}

std::array<u64, kMaxParticipants> Participant::holds_by_slot() const {
  check_not_forked();
  std::array<u64, kMaxParticipants> holds{};
  for (u64 i = 0; i < directory_.entry_count(); ++i) {
    for (u64 holders = directory_.word(i).holders; holders != 0; holders &= holders - 1) {
      ++holds[static_cast<unsigned>(std::countr_zero(holders))];
    }
  }
  return holds;
}

u64 Participant::counter_of(unsigned slot, Counter counter) const {
  check_not_forked();
  arena_slot(slot);  // checks it
  return directory_.load(segment_.view().participants[slot].counters.value[counter]);
}

u64 Participant::counter(Counter counter) const {
  check_not_forked();
  u64 sum = directory_.load(segment_.view().header->visitors.value[counter]);
  for (unsigned slot = 0; slot < kMaxParticipants; ++slot) {
    sum += directory_.load(segment_.view().participants[slot].counters.value[counter]);
  }
  return sum;
}

}  // namespace ec_ipc
