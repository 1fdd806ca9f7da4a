// fuzz_steps [CORRUPTIONS [SEED]]
//
// Damage in the middle of an operation, at a step that is told: what lies between two loads of one
// operation is where a number that was checked may be another one. First every step of a reservation at
// which all entries can be taken away, then steps and damages at random.
#include <functional>

#include "aim.h"
#include "exercise.h"
#include "run_of.h"

using namespace fuzz;

namespace {

constexpr u64 kItems = 8;
constexpr u64 kArena = 4 * kAlignment;

// Strikes once, before a load or a swap.
class StruckPolicy : public SystemPolicy {
 public:
  u64 load(const u64& word) const {
    step();
    return SystemPolicy::load(word);
  }
  bool compare_exchange(u64& word, u64& expected, u64 desired) const {
    step();
    return SystemPolicy::compare_exchange(word, expected, desired);
  }
  // After so many steps; none of them when the operation is over before.
  void strike_after(u64 steps, std::function<void()> damage) {
    left_ = steps + 1;
    damage_ = std::move(damage);
  }
  bool struck() const { return left_ == 0; }

 private:
  void step() const {
    if (left_ != 0 && --left_ == 0) damage_();
  }
  mutable u64 left_ = 0;
  std::function<void()> damage_;
};

// One participant with an arena, of whose operations every step can be struck.
class Struck {
 public:
  Struck() {
    policy_.fd = file_.get();
    member_.join({1, 2, pack_role("producer")}, kPatience);
    ArenaRecord record;
    record.nbytes = kArena;
    member_.set_arena(record, kPatience);
    put(1, 100, 2);
    put(2, 300, 0);
  }

  StruckPolicy& policy() { return policy_; }
  const Geometry& geometry() const { return view_.geometry; }
  u64 value(u64 word) const { return policy_.SystemPolicy::load(words()[word]); }
  void set(u64 word, u64 value) { policy_.store(words()[word], value); }
  void hold_every_entry() {
    const u64 held = Word{State::kReady, 0, 0, holder_bit(35)}.pack();
    for (u64 i = 0; i < geometry().entry_count; ++i) policy_.store(view_.entries[i].word, held);
  }

  // The number of an operation says which.
  void operate(u64 choice) {
    const u64 number = 1 + choice / 8 % 4;
    switch (choice % 8) {
      case 0:
      case 1:
        put(number, 1 + choice / 32 % 700, choice % 3);
        break;
      case 2:
        member_.announce(key(number), 1, kTtl, kPatience);
        break;
      case 3:
        if (const auto found = member_.directory().find(key(number))) {
          member_.directory().settle(found->token, 1);
        }
        break;
      case 4:
        member_.maintain(kPatience);
        break;
      case 5:
        if (member_.leave(kPatience)) member_.join({1, 2, pack_role("producer")}, kPatience);
        break;
      default:
        if (const auto view = member_.holds().pin(key(number))) {
          read_view(*view, arena_);
          member_.unpin(view->token);
        }
    }
  }

  void put(u64 number, u64 nbytes, u64 announced) {
    const Placement placed = member_.reserve(request(number, nbytes, announced, false), kPatience);
    if (placed.outcome != Outcome::kReserved) return;
    if (placed.offset > kArena || nbytes > kArena - placed.offset) std::abort();
    member_.directory().publish(*placed.token, 0);
  }

 private:
  u64* words() const { return static_cast<u64*>(mapping_.data()); }

  TestSegment segment_{kItems};
  OwnedFd file_{segment_.open()};
  Memory mapping_{file_.get(), Geometry::of(kItems).total_bytes, false};
  SegmentView view_ = SegmentView::of(mapping_.data(), Geometry::of(kItems));
  StruckPolicy policy_;
  Membership<StruckPolicy> member_{policy_, view_};
  std::vector<std::byte> arena_ = std::vector<std::byte>(kArena);
};

// At each step of a reservation that has to evict, and of one that need not.
u64 take_all_entries_away_at_every_step() {
  u64 steps = 0;
  for (const u64 nbytes : {u64{64}, u64{600}}) {
    for (u64 step = 0;; ++step, ++steps) {
      Struck struck;
      struck.policy().strike_after(step, [&] { struck.hold_every_entry(); });
      unless_refused([&] { struck.put(3, nbytes, 1); });
      if (!struck.policy().struck()) break;
    }
  }
  return steps;
}

u64 damage_random_steps(const RunOf& run, u64 damages) {
  for (u64 input = 0; damages < run.corruptions; ++input) {
    Random random(run.seed + input);
    Struck struck;
    for (u64 turn = 0; turn < 20; ++turn) {
      // Few operations have more steps; most have fewer than a hundred.
      struck.policy().strike_after(random() % (random() % 4 == 0 ? 1500 : 60), [&] {
        const u64 word = aimed_word(struck.geometry(), random);
        struck.set(word, aimed_value(struck.value(word), random));
        ++damages;
      });
      const u64 choice = random();
      unless_refused([&] { struck.operate(choice); });
    }
  }
  return damages;
}

}  // namespace

int main(int count, char** arguments) {
  const RunOf run = run_of(count, arguments, 20'000);
  const u64 steps = take_all_entries_away_at_every_step();
  std::printf("all entries taken away at each of %llu steps\n", static_cast<unsigned long long>(steps));
  if (steps == 0) return fail("a reservation has no steps");
  return tried(damage_random_steps(run, steps));
}
