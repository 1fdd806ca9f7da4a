#include <algorithm>
#include <set>

#include "check.h"
#include "fixture.h"

using namespace fixture;

TEST(an_entry_lives_from_reserve_to_the_last_reader) {
  const TestSegment segment;
  const auto e = segment.producer(1 << 20);
  const auto pd = segment.reader();
  const Placement placed = e->reserve(request(1, 1000, 1), kPatience);
  CHECK(placed.outcome == Outcome::kReserved && placed.offset == 0);
  CHECK(pd->find(key(1))->word.state == State::kWriting);
  CHECK(!pd->pin(key(1)));
  CHECK(e->publish(*placed.token, 0));
  const auto pin = pd->pin(key(1));
  CHECK(pin && pin->fields.nbytes == 1000 && pin->token.entry == placed.token->entry);
  CHECK(pd->settle(pin->token, 1));
  CHECK(pd->find(key(1)).has_value());
  pd->unpin(pin->token);
  CHECK(!pd->find(key(1)));
  CHECK(pd->counter(kFreedByLastReader) == 1);
  CHECK(e->arena_used(static_cast<unsigned>(e->slot())) == 0);
}

TEST(a_key_that_is_there_is_announced_and_not_reserved_again) {
  const TestSegment segment;
  const auto e = segment.producer(1 << 20);
  const auto other = segment.producer(1 << 20);
  const Placement first = e->reserve(request(1, 100, 1), kPatience);
  CHECK(e->reserve(request(1, 100), kPatience).outcome == Outcome::kWritingHere);
  CHECK(other->reserve(request(1, 100), kPatience).outcome == Outcome::kWritingElsewhere);
  CHECK(other->announce(key(1), 1, kTtl, kPatience).outcome == Outcome::kWritingElsewhere);
  CHECK(e->publish(*first.token, 2));
  CHECK(e->find(key(1))->word.announced == 3);
  const Placement second = other->reserve(request(1, 100, 4), kPatience);
  CHECK(second.outcome == Outcome::kAnnounced && second.token->entry == first.token->entry);
  CHECK(e->find(key(1))->word.announced == 7);
  CHECK(other->announce(key(2), 1, kTtl, kPatience).outcome == Outcome::kAbsent);
}

TEST(a_late_release_changes_nothing_and_is_counted) {
  const TestSegment segment;
  const auto e = segment.producer(1 << 20);
  const Placement first = put(*e, request(1, 100, 1));
  CHECK(e->settle(*first.token, 1));
  // The only entries of one small bucket pair: reserve until the same entry comes back.
  Token again{};
  for (u64 tries = 0; tries < 200 && again.entry != first.token->entry; ++tries) {
    const Placement next = put(*e, request(1, 100, 1));
    again = *next.token;
    if (again.entry != first.token->entry) CHECK(e->settle(again, 1));
  }
  CHECK(again.entry == first.token->entry && again.generation != first.token->generation);
  const u64 late = e->counter(kLateReleases);
  CHECK(!e->settle(*first.token, 1));
  CHECK(!e->publish(*first.token, 1));
  CHECK(!e->abort(*first.token));
  CHECK(e->find(key(1))->word.announced == 1);
  CHECK(e->counter(kLateReleases) == late + 1);
}

TEST(the_longest_free_entry_is_taken_first) {
  const TestSegment segment;
  const auto e = segment.producer(1 << 20);
  std::set<u64> seen;
  for (int i = 0; i < 32; ++i) {
    const Placement placed = put(*e, request(1, 100, 1));
    CHECK(seen.insert(placed.token->entry).second);
    e->settle(*placed.token, 1);
  }
}

TEST(thousands_of_keys_are_found_while_as_many_live) {
  constexpr u64 kItems = 4096;
  const TestSegment segment(kItems);
  const auto e = segment.producer(kItems * kAlignment);
  for (u64 i = 0; i < kItems; ++i) {
    CHECK(put(*e, request(i, 64, 1)).outcome == Outcome::kReserved);
  }
  u64 missed = 0;
  for (u64 i = 0; i < kItems; ++i) missed += !e->find(key(i));
  CHECK(missed == 0);
  CHECK(e->reserve(request(kItems, 64), kPatience).outcome == Outcome::kDirectoryFull);
  // At full load, in steady state: as many go as come.
  u64 refused = 0;
  for (u64 i = kItems; i < 2 * kItems; ++i) {
    const auto oldest = e->find(key(i - kItems));
    if (oldest) e->settle(oldest->token, 1);
    refused += put(*e, request(i, 64, 1)).outcome != Outcome::kReserved;
    missed += !e->find(key(i));
  }
  CHECK(refused == 0);
  CHECK(missed == 0);
}

TEST(when_both_buckets_are_full_one_of_theirs_is_evicted_or_the_key_refused) {
  constexpr u64 kItems = 256;
  constexpr u64 kBuckets = 2 * kItems / kBucketEntries;
  const TestSegment segment(kItems);
  const auto e = segment.producer(kItems * kAlignment);
  const Probe wanted = probe(key(0), kBuckets);
  const auto same_buckets = [&](u64 number) {
    const Probe p = probe(key(number), kBuckets);
    return (p.bucket[0] == wanted.bucket[0] && p.bucket[1] == wanted.bucket[1]) ||
           (p.bucket[0] == wanted.bucket[1] && p.bucket[1] == wanted.bucket[0]);
  };
  std::vector<u64> numbers;
  for (u64 i = 0; numbers.size() < 2 * kBucketEntries + 2; ++i) {
    if (same_buckets(i)) numbers.push_back(i);
  }
  for (unsigned i = 0; i < 2 * kBucketEntries; ++i) {
    // The last but one is the only one that may go.
    const bool evictable = i == 2 * kBucketEntries - 2;
    CHECK(put(*e, request(numbers[i], 64, !evictable, !evictable)).outcome == Outcome::kReserved);
  }
  CHECK(put(*e, request(numbers[32], 64, 1)).outcome == Outcome::kReserved);
  CHECK(!e->find(key(numbers[30])) && e->find(key(numbers[31])) && e->find(key(numbers[32])));
  CHECK(e->reserve(request(numbers[33], 64), kPatience).outcome == Outcome::kDirectoryFull);
}

TEST(eviction_takes_the_least_recently_used_of_the_own_arena) {
  const TestSegment segment;
  const auto e = segment.producer(4 * kAlignment);
  const auto other = segment.producer(4 * kAlignment);
  put(*other, request(100, 64, 0, false));
  for (u64 i = 0; i < 4; ++i) CHECK(put(*e, request(i, 64, 0, false)).outcome == Outcome::kReserved);
  const auto used = e->pin(key(0));
  e->unpin(used->token);
  CHECK(put(*e, request(4, 64, 0, false)).outcome == Outcome::kReserved);
  CHECK(e->find(key(0)) && !e->find(key(1)) && e->find(key(2)) && e->find(key(3)));
  CHECK(e->find(key(100)).has_value());
  CHECK(e->counter(kEvicted) == 1);
}

TEST(what_is_held_or_announced_is_not_evicted) {
  const TestSegment segment;
  const auto e = segment.producer(2 * kAlignment);
  put(*e, request(0, 64, 0, false));
  put(*e, request(1, 64, 1, false));
  const auto pin = e->pin(key(0));
  CHECK(!e->fits(static_cast<unsigned>(e->slot()), 64));
  CHECK(e->reserve(request(2, 64), kPatience).outcome == Outcome::kArenaFull);
  CHECK(e->find(key(0)) && e->find(key(1)));
  e->unpin(pin->token);
  CHECK(e->fits(static_cast<unsigned>(e->slot()), 64));
  CHECK(!e->fits(static_cast<unsigned>(e->slot()), 2 * kAlignment));
  CHECK(e->reserve(request(2, 64), kPatience).outcome == Outcome::kReserved);
  CHECK(!e->find(key(0)) && e->find(key(1)));
}

TEST(what_is_being_written_is_in_use) {
  const TestSegment segment;
  const auto e = segment.producer(2 * kAlignment);
  const Placement first = e->reserve(request(0, 64), kPatience);
  const Placement second = e->reserve(request(1, 64), kPatience);
  CHECK(first.outcome == Outcome::kReserved && second.outcome == Outcome::kReserved);
  CHECK(first.offset != second.offset);
  CHECK(e->reserve(request(2, 64), kPatience).outcome == Outcome::kArenaFull);
}

TEST(nothing_is_evicted_for_an_item_that_cannot_fit_anyway) {
  const TestSegment segment;
  const auto e = segment.producer(4 * kAlignment);
  put(*e, request(0, 64, 0, false));
  put(*e, request(1, 64, 1, false));
  CHECK(e->reserve(request(2, 4 * kAlignment), kPatience).outcome == Outcome::kArenaFull);
  CHECK(e->reserve(request(2, 4 * kAlignment + 1), kPatience).outcome == Outcome::kTooLarge);
  CHECK(e->find(key(0)).has_value());
}

TEST(announcements_expire_by_their_deadline_and_no_earlier) {
  const TestSegment segment;
  const auto e = segment.producer(1 << 20);
  put(*e, request(0, 64, 1, true, 0));
  put(*e, request(1, 64, 1, true, kTtl));
  put(*e, request(2, 64, 1, true, 0));
  put(*e, request(3, 64, 1, true, 0));
  const auto pin = e->pin(key(2));
  CHECK(e->announce(key(3), 1, kTtl, kPatience).outcome == Outcome::kAnnounced);
  CHECK(e->maintain(kPatience).expired == 1);
  CHECK(!e->find(key(0)) && e->find(key(1)) && e->find(key(2)) && e->find(key(3)));
  e->unpin(pin->token);
  CHECK(e->maintain(kPatience).expired == 1);
  CHECK(!e->find(key(2)));
}

TEST(a_new_epoch_hides_what_is_older) {
  const TestSegment segment;
  const auto e = segment.producer(1 << 20);
  const Placement old = put(*e, request(0, 64, 1));
  const auto pin = e->pin(key(0));
  CHECK(e->bump_epoch() == 1 && e->epoch() == 1);
  CHECK(!e->find(key(0)) && !e->pin(key(0)) && !e->pin(*old.token));
  CHECK(e->announce(key(0), 1, kTtl, kPatience).outcome == Outcome::kAbsent);
  CHECK(put(*e, request(0, 64, 1)).outcome == Outcome::kReserved);
  CHECK(e->find(key(0))->token.entry != old.token->entry);
  e->maintain(kPatience);
  CHECK(e->snapshot(old.token->entry).has_value());
  e->unpin(pin->token);
  e->maintain(kPatience);
  CHECK(!e->snapshot(old.token->entry));
}

TEST(what_is_held_can_be_shared_although_nobody_finds_it_any_more) {
  const TestSegment segment;
  const auto e = segment.producer(1 << 20);
  const auto scheduler = segment.reader();
  const auto worker = segment.reader();
  const Token token = *put(*e, request(0, 64, 1)).token;
  CHECK(!worker->pin_shared(token));  // nobody holds it
  const auto held = scheduler->pin(key(0));
  CHECK(e->bump_epoch() == 1);
  CHECK(!worker->pin(token) && !worker->pin_shared({token.entry, token.generation + 1}));
  const auto shared = worker->pin_shared(token);
  CHECK(shared && shared->fields.nbytes == 64);
  CHECK(worker->pin_shared(token).has_value());  // also a second time in this process
  worker->unpin(token);
  scheduler->unpin(held->token);
  worker->maintain(kPatience);
  CHECK(worker->snapshot(token.entry).has_value());
  worker->unpin(token);
  worker->maintain(kPatience);
  CHECK(!worker->snapshot(token.entry) && !worker->pin_shared(token));
}

TEST(numbers_that_make_no_sense_are_as_good_as_absent) {
  const TestSegment segment;
  const auto e = segment.producer(1 << 20);
  const Placement placed = put(*e, request(0, 1000, 1));
  EntrySlot& entry = e->segment().view().entries[placed.token->entry];
  const auto refused = [&](u64& field, u64 value) {
    const u64 before = field;
    field = value;
    const bool absent = !e->find(key(0)) && !e->pin(key(0)) && !e->pin(*placed.token);
    field = before;
    return absent && e->total_holds() == 0;
  };
  CHECK(refused(entry.offset, 1 << 20));
  CHECK(refused(entry.offset, ~u64{0}));
  CHECK(refused(entry.nbytes, ~u64{0}));
  CHECK(refused(entry.nbytes, (1 << 20) + 1));
  CHECK(refused(entry.rank, kMaxRank + 1));
  CHECK(refused(entry.shape[0], ~u64{0}));
  entry.shape[0] = 0;
  CHECK(refused(entry.nbytes, 0));
  entry.shape[0] = 1000;
  CHECK(refused(entry.arena, ArenaRef{200, 1}.pack()));
  CHECK(refused(entry.arena, ArenaRef{0, 0}.pack()));
  CHECK(refused(entry.digest[3], 1) == false);  // another key, but the token still names it
  CHECK(e->find(key(0)).has_value());
}

TEST(tokens_out_of_range_name_nothing) {
  const TestSegment segment;
  const auto e = segment.producer(1 << 20);
  for (const u64 entry : {u64{128}, ~u64{0}}) {
    CHECK(!e->publish({entry, 0}, 1) && !e->abort({entry, 0}));
    CHECK(!e->settle(Token{entry, 0}, 1) && !e->pin(Token{entry, 0}));
    CHECK(!e->snapshot(entry));
  }
}
