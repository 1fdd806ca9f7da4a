// The loop around the entry word's transitions, with somebody else's steps put between its own.
#include <functional>

#include "check.h"
#include "fixture.h"

using namespace fixture;

namespace {

constexpr u64 kItems = 8;
constexpr std::uint32_t kGeneration = 7;

// Lets others act right after a load of the entry's word, and right before a swap of it.
class InterruptedPolicy : public SystemPolicy {
 public:
  u64 load(const u64& word) const {
    const u64 value = SystemPolicy::load(word);
    if (&word == watched && after_load) after_load();
    return value;
  }
  bool compare_exchange(u64& word, u64& expected, u64 desired) const {
    if (&word == watched && before_swap) before_swap();
    return SystemPolicy::compare_exchange(word, expected, desired);
  }

  const u64* watched = nullptr;
  std::function<void()> after_load;
  std::function<void()> before_swap;
};

struct OneEntry {
  TestSegment segment{kItems};
  Memory memory{segment.fd(), Geometry::of(kItems).total_bytes, false};
  SegmentView view = SegmentView::of(memory.data(), Geometry::of(kItems));
  InterruptedPolicy policy;
  Directory<InterruptedPolicy> directory{policy, view};
  EntrySlot& entry = view.entries[0];

  explicit OneEntry(const Word& word) {
    entry.word = word.pack();
    entry.flags = 0;
    policy.watched = &entry.word;
  }
  bool settle() { return directory.settle({0, kGeneration}, 1); }
  State state() { return Word::unpack(entry.word).state; }
};

}  // namespace

TEST(the_flag_is_read_after_the_word) {
  OneEntry one({State::kReady, kGeneration, 1, 0});
  one.policy.after_load = [&] { one.entry.flags = kFlagDeallocate; };
  CHECK(one.settle());
  CHECK(one.state() == State::kFree);
}

TEST(the_flag_is_read_again_in_every_turn) {
  OneEntry one({State::kReady, kGeneration, 2, 0});
  int turns = 0;
  one.policy.before_swap = [&] {
    if (turns++ > 0) return;
    // Another one settles and so this swap fails; the flag that decides is the one of now.
    one.entry.word = Word{State::kReady, kGeneration, 1, 0}.pack();
    one.entry.flags = kFlagDeallocate;
  };
  CHECK(one.settle());
  CHECK(turns == 2);
  CHECK(one.state() == State::kFree);
}

TEST(a_swap_that_another_generation_overtakes_is_late) {
  OneEntry one({State::kReady, kGeneration, 1, 0});
  one.policy.before_swap = [&] {
    one.entry.word = Word{State::kReady, kGeneration + 1, 1, 0}.pack();
    one.policy.before_swap = nullptr;
  };
  CHECK(!one.settle());
  CHECK(one.entry.word == (Word{State::kReady, kGeneration + 1, 1, 0}).pack());
}
