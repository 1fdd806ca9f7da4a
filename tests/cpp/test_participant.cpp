#include <sys/wait.h>

#include "check.h"
#include "fixture.h"

using namespace fixture;

TEST(a_dead_readers_hold_is_reclaimed) {
  const TestSegment segment;
  const auto e = segment.producer(1 << 20);
  const Placement placed = put(*e, request(0, 64, 1));
  {
    const auto pd = segment.reader();
    CHECK(pd->pin(key(0)).has_value());
    CHECK(e->settle(*placed.token, 1));
    CHECK(e->maintain(kPatience).reclaimed == 0);
    CHECK(e->find(key(0)).has_value());
  }
  // The handle is gone without leave(), as after a kill.
  CHECK(e->maintain(kPatience).reclaimed == 1);
  CHECK(!e->find(key(0)));
  CHECK(e->participants().size() == 1);
}

TEST(a_reserve_that_finds_no_place_reclaims_the_dead) {
  const TestSegment segment;
  const auto e = segment.producer(kAlignment);
  put(*e, request(0, 64, 0, false));
  segment.reader()->pin(key(0));
  CHECK(e->total_holds() == 1);
  CHECK(e->reserve(request(1, 64), kPatience).outcome == Outcome::kReserved);
}

TEST(a_join_reclaims_all_the_dead) {
  const TestSegment segment;
  const auto e = segment.producer(1 << 20);
  put(*e, request(0, 64, 1));
  {
    const auto first = segment.reader();
    const auto second = segment.reader();
    CHECK(first->pin(key(0)) && second->pin(key(0)));
  }
  CHECK(e->total_holds() == 2);
  const auto late = segment.reader();
  CHECK(e->total_holds() == 0);
}

TEST(what_a_dead_owner_announced_is_void_at_once) {
  const TestSegment segment;
  const auto pd = segment.reader();
  Token token{};
  {
    const auto e = segment.producer(1 << 20);
    token = *put(*e, request(0, 64, 3, false)).token;
    CHECK(pd->maintain(kPatience).evicted == 0);
  }
  CHECK(pd->snapshot(token.entry).has_value());
  CHECK(pd->maintain(kPatience).evicted == 1);
  CHECK(!pd->snapshot(token.entry));
}

TEST(a_dead_writers_entry_is_taken_over) {
  const TestSegment segment;
  const auto other = segment.producer(1 << 20);
  {
    const auto e = segment.producer(1 << 20);
    CHECK(e->reserve(request(0, 64, 1), kPatience).outcome == Outcome::kReserved);
  }
  CHECK(other->reserve(request(0, 64, 1), kPatience).outcome == Outcome::kReserved);
  CHECK(other->counter(kReclaimed) == 1);
}

TEST(a_dead_owners_arena_keeps_its_slot_until_it_is_forgotten) {
  const TestSegment segment;
  const auto pd = segment.reader();
  unsigned slot = 0;
  ArenaRef ref{};
  {
    const auto e = segment.producer(1 << 20);
    slot = static_cast<unsigned>(e->slot());
    ref = e->arena(slot)->ref;
    put(*e, request(0, 64, 1, false));
    CHECK(!pd->forget_arena(ref, kPatience));
  }
  const auto pin = pd->pin(key(0));
  CHECK(pin.has_value());
  pd->maintain(kPatience);
  CHECK(pd->arena(slot).has_value());
  CHECK(segment.reader()->slot() != static_cast<int>(slot));
  CHECK(pd->forget_arena(ref, kPatience));
  CHECK(!pd->forget_arena(ref, kPatience));
  CHECK(!pd->pin(key(0)));
  pd->unpin(pin->token);
  CHECK(pd->maintain(kPatience).evicted == 1);
  CHECK(segment.reader()->slot() == static_cast<int>(slot));
}

TEST(leaving_waits_for_the_last_view) {
  const TestSegment segment;
  const auto e = segment.producer(1 << 20);
  const auto pd = segment.reader();
  put(*e, request(0, 64, 2));
  const auto first = pd->pin(key(0));
  const auto second = pd->pin(key(0));
  CHECK(pd->holds() == 2 && e->total_holds() == 1);
  CHECK(!pd->leave(kPatience));
  CHECK(!pd->pin(key(0)));
  CHECK(e->anyone_else());
  pd->unpin(first->token);
  CHECK(e->anyone_else() && e->participants().size() == 2);
  pd->unpin(second->token);
  CHECK(!e->anyone_else() && e->participants().size() == 1);
  CHECK(pd->slot() == -1);
}

TEST(leaving_aborts_writes_and_forgets_the_arena) {
  const TestSegment segment;
  const auto e = segment.producer(1 << 20);
  const auto pd = segment.reader();
  const auto slot = static_cast<unsigned>(e->slot());
  e->reserve(request(0, 64, 1), kPatience);
  put(*e, request(1, 64, 1));
  CHECK(e->leave(kPatience));
  CHECK(!pd->find(key(0)) && !pd->find(key(1)) && !pd->arena(slot));
  CHECK(e->leave(kPatience));
  CHECK(e->join("producer", 2, kPatience) == slot);
}

TEST(slots_run_out_with_a_clear_error) {
  const TestSegment segment;
  std::vector<std::shared_ptr<Participant>> all;
  for (unsigned i = 0; i < kMaxParticipants; ++i) all.push_back(segment.reader());
  CHECK_THROWS(NoFreeSlot, segment.reader());
  all[17].reset();
  CHECK(segment.reader()->slot() == 17);
}

TEST(handles_of_one_process_exclude_each_other) {
  const TestSegment segment;
  const OwnedFd holder(segment.open());
  CHECK(lock_byte::try_lock(holder.get(), lock_byte::kWriter));
  CHECK_THROWS(LockTimeout, segment.handle()->join("reader", 1, 1ms));
  lock_byte::unlock(holder.get(), lock_byte::kWriter);
  CHECK(segment.reader()->slot() == 0);
}

TEST(a_forked_child_holds_nothing_and_may_do_nothing) {
  const TestSegment segment;
  const auto e = segment.producer(1 << 20);
  const auto other = segment.reader();
  put(*e, request(0, 64, 1));
  auto pin = std::make_unique<Hold>(e, *e->pin(key(0)));
  const pid_t child = ::fork();
  if (child == 0) {
    int refused = 0;
    try {
      (void)e->find(key(0));
    } catch (const ForkedHandle&) {
      ++refused;
    }
    try {
      (void)e->maintain(kPatience);
    } catch (const ForkedHandle&) {
      ++refused;
    }
    pin.reset();
    ::_exit(refused == 2 ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(other->total_holds() == 1 && e->holds() == 1);
  CHECK(other->anyone_else());
}

TEST(mapped_marks_are_per_engine_role_and_arena) {
  const TestSegment segment;
  const auto e = segment.producer(1 << 20);
  const auto pd = segment.reader();
  const ArenaRef ref = e->arena(static_cast<unsigned>(e->slot()))->ref;
  CHECK(e->mapped_by(1, "reader", ref) == 0);
  pd->mark_mapped(ref.slot, ref.incarnation);
  CHECK(e->mapped_by(1, "reader", ref) == 1);
  CHECK(e->mapped_by(2, "reader", ref) == 0 && e->mapped_by(1, "worker", ref) == 0);
  CHECK(e->mapped_by(1, "reader", {ref.slot, ref.incarnation + 1}) == 0);
  pd->mark_mapped(ref.slot, 0);
  CHECK(e->mapped_by(1, "reader", ref) == 0);
}

TEST(one_arena_per_incarnation) {
  const TestSegment segment;
  const auto e = segment.producer(1 << 20);
  ArenaRecord record;
  record.nbytes = 1 << 20;
  CHECK_THROWS(SegmentError, e->set_arena(record, kPatience));
  const ArenaRef ref = e->arena(static_cast<unsigned>(e->slot()))->ref;
  CHECK(e->forget_arena(ref, kPatience));
  CHECK_THROWS(SegmentError, e->set_arena(record, kPatience));
  CHECK(e->leave(kPatience));
  e->join("producer", 2, kPatience);
  e->set_arena(record, kPatience);
  CHECK(e->arena(static_cast<unsigned>(e->slot()))->ref.incarnation > ref.incarnation);
}

TEST(headers_of_another_layout_are_refused) {
  const auto refused = [](auto damage) {
    const TestSegment segment;
    const Memory memory(segment.fd(), segment_bytes(64), false);
    damage(*static_cast<Header*>(memory.data()));
    try {
      segment.handle();
      return false;
    } catch (const SegmentError&) {
      return true;
    }
  };
  CHECK(!refused([](Header&) {}));
  CHECK(refused([](Header& h) { h.magic ^= 1; }));
  CHECK(refused([](Header& h) { ++h.layout_version; }));
  CHECK(refused([](Header& h) { ++h.layout_hash; }));
  CHECK(refused([](Header& h) { h.total_bytes += 64; }));
  CHECK(refused([](Header& h) { h.max_items = 0; }));
  CHECK(refused([](Header& h) { h.max_items = ~u64{0}; }));
  CHECK(refused([](Header& h) { h.max_items = 4096; }));
  CHECK(refused([](Header& h) { ++h.entry_count; }));
  CHECK(refused([](Header& h) { h.entries_offset = ~u64{0}; }));
  CHECK(refused([](Header& h) { h.participant_slots = 64; }));
  CHECK(refused([](Header& h) { h.ready = 0; }));
}
