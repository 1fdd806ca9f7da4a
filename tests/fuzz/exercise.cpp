#include "exercise.h"

#include <algorithm>

namespace fuzz {
namespace {

template <class Pin>
void read(Participant& who, std::span<const std::byte> arena, Pin&& pin) {
  // A participant that has left may not pin.
  unless_refused([&] {
    if (const auto view = pin()) {
      read_view(*view, arena);
      who.unpin(view->token);
    }
  });
}

void exercise_entries(Participant& who, u64 choice, std::span<const std::byte> arena) {
  const u64 entries = who.segment().view().geometry.entry_count;
  for (u64 i = 0; i < entries + 1; ++i) {
    const auto found = who.snapshot(i);
    if (!found) continue;
    read(who, arena, [&] { return who.pin(found->token); });
    if ((choice >> i % 64 & 1) != 0) who.settle(found->token, 1);
  }
  for (u64 number = 0; number < 5; ++number) {
    (void)who.find(key(number));
    read(who, arena, [&] { return who.pin(key(number)); });
    unless_refused([&] { who.announce(key(number), 1, kTtl, kShort); });
    who.settle(key(number), choice % 3);
  }
}

void exercise_records(Participant& who, u64 choice) {
  (void)who.participants();
  (void)who.total_holds();
  (void)who.holds_by_slot();
  for (unsigned slot = 0; slot < kMaxParticipants; ++slot) {
    const auto arena = who.arena(slot);
    (void)who.arena_used(slot);
    (void)who.fits(slot, 1 + choice % 5000);
    if (!arena) continue;
    (void)who.mapped_by(choice % 3, "reader", arena->ref);
    if (!who.owner_alive(slot)) unless_refused([&] { who.forget_arena(arena->ref, kShort); });
  }
  for (unsigned c = 0; c < kCounterCount; ++c) (void)who.counter(static_cast<Counter>(c));
}

}  // namespace

bool read_view(const Found& view, std::span<const std::byte> arena) {
  // As Pin.attach() does with the size of the mapping.
  if (view.fields.nbytes > arena.size() || view.fields.offset > arena.size() - view.fields.nbytes)
    return false;
  volatile std::byte last{};
  for (const std::byte byte : arena.subspan(view.fields.offset, view.fields.nbytes)) last = byte;
  (void)last;
  return true;
}

void exercise_reader(Participant& who, u64 choice, std::span<const std::byte> arena) {
  exercise_entries(who, choice, arena);
  exercise_records(who, choice);
  unless_refused([&] { who.maintain(kShort); });
}

void exercise_producer(Participant& who, u64 choice, std::span<std::byte> arena) {
  unless_refused([&] {
    const u64 nbytes = 1 + choice % 900;
    const Placement placed = who.reserve(request(4 + choice % 8, nbytes, choice % 3), kShort);
    if (placed.outcome != Outcome::kReserved) return;
    // Whatever the segment says, the place lies in the own arena, whose size the owner knows.
    if (placed.offset > arena.size() || nbytes > arena.size() - placed.offset) std::abort();
    std::ranges::fill(arena.subspan(placed.offset, nbytes), std::byte{1});
    choice % 2 == 0 ? who.publish(*placed.token, 1) : who.abort(*placed.token);
  });
}

}  // namespace fuzz
