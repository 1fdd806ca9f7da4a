#include "entry_word.h"

#include "check.h"

using namespace ec_ipc;

namespace {

constexpr std::uint64_t kMine = holder_bit(3);
constexpr std::uint64_t kOther = holder_bit(35);

constexpr Word ready(std::uint32_t announced, std::uint64_t holders, std::uint32_t generation = 7) {
  return {State::kReady, generation, announced, holders};
}
constexpr Word writing(std::uint32_t announced, std::uint64_t holders = kMine) {
  return {State::kWriting, 7, announced, holders};
}
constexpr Word kFreed{State::kFree, 7, 0, 0};

// The functions are pure, so the compiler can already run them.
static_assert(*step::unpin(ready(0, kMine), 7, kMine, true) == kFreed);
static_assert(!step::pin(kFreed, kMine));

}  // namespace

TEST(packing_keeps_every_field_at_its_limits) {
  const Word words[] = {{State::kFree, 0, 0, 0},
                        {State::kWriting, kGenerations - 1, 0, kOther},
                        {State::kReady, 0, kMaxAnnounced, 0},
                        {State::kReady, 1, 1, (1ULL << kHolderBits) - 1},
                        {State::kReady, kGenerations - 1, kMaxAnnounced, (1ULL << kHolderBits) - 1}};
  for (const Word& word : words) CHECK(Word::unpack(word.pack()) == word);
  CHECK((Word{State::kReady, 0, 0, 0}).pack() == 2ULL << 62);
  CHECK((Word{State::kFree, 1, 0, 0}).pack() == 1ULL << 50);
  CHECK((Word{State::kFree, 0, 1, 0}).pack() == 1ULL << 36);
}

TEST(reserve_takes_free_entries_only_and_starts_a_generation) {
  const auto next = step::reserve(kFreed, kMine, 2);
  CHECK(next && *next == (Word{State::kWriting, 8, 2, kMine}));
  CHECK(!step::reserve(writing(0), kMine, 0));
  CHECK(!step::reserve(ready(0, 0), kMine, 0));
}

TEST(the_last_generation_is_followed_by_the_first) {
  const auto next = step::reserve({State::kFree, kGenerations - 1, 0, 0}, kMine, 0);
  CHECK(next && next->generation == 0);
  CHECK(next->state == State::kWriting && next->holders == kMine);
}

TEST(publish_is_for_the_writer_in_its_generation) {
  CHECK(*step::publish(writing(1), 7, kMine, 2, true) == ready(3, 0));
  CHECK(!step::publish(writing(1), 8, kMine, 0, true));
  CHECK(!step::publish(writing(1), 7, kOther, 0, true));
  CHECK(!step::publish(ready(1, kMine), 7, kMine, 0, true));
  CHECK(!step::publish(kFreed, 7, kMine, 0, true));
}

TEST(publish_frees_what_nobody_announced_when_deallocating) {
  CHECK(*step::publish(writing(0), 7, kMine, 0, true) == kFreed);
  CHECK(*step::publish(writing(0), 7, kMine, 0, false) == ready(0, 0));
}

TEST(abort_is_for_the_writer_in_its_generation) {
  CHECK(*step::abort(writing(5), 7, kMine) == kFreed);
  CHECK(!step::abort(writing(5), 6, kMine));
  CHECK(!step::abort(writing(5), 7, kOther));
  CHECK(!step::abort(ready(5, kMine), 7, kMine));
}

TEST(announcements_land_on_ready_only) {
  CHECK(*step::announce(ready(1, 0), 7, 2) == ready(3, 0));
  CHECK(!step::announce(ready(1, 0), 8, 2));
  CHECK(!step::announce(writing(1), 7, 2));
  CHECK(!step::announce(kFreed, 7, 2));
}

TEST(a_full_counter_sticks) {
  CHECK(step::announce(ready(kMaxAnnounced - 1, 0), 7, 1)->announced == kMaxAnnounced);
  CHECK(step::announce(ready(5, 0), 7, ~0ULL)->announced == kMaxAnnounced);
  CHECK(step::settle(ready(kMaxAnnounced, 0), 7, 1, true)->announced == kMaxAnnounced);
  CHECK(step::settle(ready(kMaxAnnounced, 0), 7, ~0ULL, true)->announced == kMaxAnnounced);
  CHECK(*step::expire(ready(kMaxAnnounced, 0), true) == kFreed);
  CHECK(step::reserve(kFreed, kMine, kMaxAnnounced + 5ULL)->announced == kMaxAnnounced);
}

TEST(pin_adds_one_bit_to_ready) {
  CHECK(*step::pin(ready(2, kOther), kMine) == ready(2, kMine | kOther));
  CHECK(!step::pin(writing(2), kMine));
  CHECK(!step::pin(kFreed, kMine));
}

TEST(unpin_takes_the_own_bit_of_the_own_generation) {
  CHECK(*step::unpin(ready(0, kMine | kOther), 7, kMine, true) == ready(0, kOther));
  CHECK(*step::unpin(ready(1, kMine), 7, kMine, true) == ready(1, 0));
  CHECK(*step::unpin(ready(0, kMine), 7, kMine, false) == ready(0, 0));
  CHECK(!step::unpin(ready(0, kMine), 8, kMine, true));
  CHECK(!step::unpin(ready(0, kOther), 7, kMine, true));
  CHECK(!step::unpin(writing(0), 7, kMine, true));
}

TEST(the_last_reader_frees) { CHECK(*step::unpin(ready(0, kMine), 7, kMine, true) == kFreed); }

TEST(settle_never_goes_below_zero_and_releases) {
  CHECK(*step::settle(ready(3, 0), 7, 1, true) == ready(2, 0));
  CHECK(*step::settle(ready(3, 0), 7, 9, true) == kFreed);
  CHECK(*step::settle(ready(3, 0), 7, 9, false) == ready(0, 0));
  CHECK(*step::settle(ready(3, kMine), 7, 3, true) == ready(0, kMine));
  CHECK(*step::settle(writing(3), 7, 3, true) == writing(0));
  CHECK(!step::settle(ready(3, 0), 6, 1, true));
  CHECK(!step::settle(kFreed, 7, 1, true));
}

TEST(expire_needs_announcements_and_no_holds) {
  CHECK(*step::expire(ready(3, 0), true) == kFreed);
  CHECK(*step::expire(ready(3, 0), false) == ready(0, 0));
  CHECK(!step::expire(ready(3, kMine), true));
  CHECK(!step::expire(ready(0, 0), false));
  CHECK(!step::expire(writing(3), true));
}

TEST(evict_needs_neither_holds_nor_announcements) {
  CHECK(*step::evict(ready(0, 0)) == kFreed);
  CHECK(!step::evict(ready(1, 0)));
  CHECK(!step::evict(ready(0, kOther)));
  CHECK(!step::evict(writing(0)));
  CHECK(!step::evict(kFreed));
}

TEST(discard_ignores_announcements_but_not_holds) {
  CHECK(*step::discard(ready(4, 0)) == kFreed);
  CHECK(!step::discard(ready(4, kOther)));
  CHECK(!step::discard(writing(4)));
}

TEST(reclaim_takes_dead_bits_and_dead_writers) {
  CHECK(*step::reclaim(ready(0, kMine | kOther), kMine, true) == ready(0, kOther));
  CHECK(*step::reclaim(ready(0, kMine | kOther), kMine | kOther, true) == kFreed);
  CHECK(*step::reclaim(ready(2, kMine), kMine, true) == ready(2, 0));
  CHECK(*step::reclaim(writing(2), kMine, false) == kFreed);
  CHECK(!step::reclaim(writing(2), kOther, true));
  CHECK(!step::reclaim(ready(0, kOther), kMine, true));
  CHECK(!step::reclaim(kFreed, kMine, true));
}

TEST(the_writer_is_known_while_writing_only) {
  CHECK(writing(0).writer() == 3);
  CHECK(writing(0, kOther).writer() == 35);
  CHECK(ready(0, kMine).writer() == -1);
  CHECK(kFreed.writer() == -1);
}

TEST(a_damaged_state_is_discarded_when_nobody_holds_it) {
  const Word damaged = Word::unpack(~0ULL & ~((1ULL << kHolderBits) - 1));
  CHECK(damaged.damaged() && damaged.holders == 0);
  CHECK(step::discard(damaged)->state == State::kFree);
  Word held = damaged;
  held.holders = kMine;
  CHECK(!step::discard(held));
}
