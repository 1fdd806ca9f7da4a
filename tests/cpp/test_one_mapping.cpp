// Two participants on one mapping, each with its own open file and so its own lock bytes.
//
// ThreadSanitizer knows addresses, not files: two mappings of one segment are two memories to it. Here it
// sees what processes do to each other, and it does not see the kernel's locks, so that only the atomic
// words may order anything. The arena is plain memory.
#include <thread>

#include "check.h"
#include "fixture.h"

using namespace fixture;

namespace {

constexpr u64 kItems = 16;
constexpr u64 kKeys = 6;
constexpr u64 kExtents = 8;
constexpr u64 kEnoughReads = 2000;
constexpr u64 kWords = kAlignment / 8;

class Member {
 public:
  Member(const TestSegment& segment, const SegmentView& view) : file_(segment.open()) {
    policy_.fd = file_.get();
    member_.emplace(policy_, view);
    member_->join({1, 1, pack_role("thread")}, kPatience);
  }
  Membership<SystemPolicy>* operator->() { return &*member_; }

 private:
  OwnedFd file_;
  SystemPolicy policy_;
  std::optional<Membership<SystemPolicy>> member_;
};

struct Shared {
  TestSegment segment{kItems};
  Memory mapping{segment.fd(), Geometry::of(kItems).total_bytes, false};
  SegmentView view = SegmentView::of(mapping.data(), Geometry::of(kItems));
  std::vector<u64> arena = std::vector<u64>(kExtents * kWords);

  u64* extent(u64 offset) { return arena.data() + offset / 8; }
};

struct Seen {
  std::atomic<u64> reads{0};
  std::atomic<u64> wrong{0};
};

void produce(Shared& shared, const Seen& seen) {
  Member self(shared.segment, shared.view);
  ArenaRecord record;
  record.nbytes = kExtents * kAlignment;
  self->set_arena(record, kPatience);
  for (u64 i = 0; seen.reads < kEnoughReads; ++i) {
    const u64 number = i % kKeys;
    const Placement placed = self->reserve(request(number, kAlignment, 1, i % 2 == 0), kPatience);
    if (placed.outcome != Outcome::kReserved) {
      std::this_thread::yield();
      continue;
    }
    std::fill_n(shared.extent(placed.offset), kWords, number);
    self->directory().publish(*placed.token, 0);
    if (i % 3 == 0) self->directory().settle(*placed.token, 1);
    if (i % 50 == 0) self->maintain(kPatience);
  }
  self->leave(kPatience);
}

void consume(Shared& shared, const std::atomic<bool>& stop, Seen& seen) {
  Member self(shared.segment, shared.view);
  for (u64 i = 0; !stop; ++i) {
    const auto view = self->holds().pin(key(i % kKeys));
    if (!view) {
      std::this_thread::yield();
      continue;
    }
    self->directory().settle(view->token, 1);
    const u64* words = shared.extent(view->fields.offset);
    u64 wrong = 0;
    for (u64 w = 0; w < kWords; ++w) wrong += words[w] != i % kKeys;
    seen.wrong += wrong;
    ++seen.reads;
    self->unpin(view->token);
    if (i % 64 == 0) self->maintain(kPatience);
  }
  self->leave(kPatience);
}

}  // namespace

TEST(what_one_publishes_another_reads_and_gives_back_without_a_race) {
  Shared shared;
  std::atomic<bool> stop{false};
  Seen seen;
  std::thread readers[] = {std::thread([&] { consume(shared, stop, seen); }),
                           std::thread([&] { consume(shared, stop, seen); })};
  produce(shared, seen);
  stop = true;
  for (std::thread& reader : readers) reader.join();
  CHECK(seen.wrong == 0);

  const auto watcher = shared.segment.reader();
  watcher->maintain(kPatience);
  CHECK(watcher->total_holds() == 0);
  CHECK(watcher->participants().size() == 1);
}
