// fuzz_live [CORRUPTIONS [SEED]]
//
// Damage under live participants: processes and threads read and put without a pause while words change
// beneath them. Each gets a view, a miss or one of our errors; nobody may crash or leave its arena.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "run_of.h"
#include "victim.h"

using namespace fuzz;

namespace {

constexpr u64 kKeys = 12;
constexpr u64 kDamagesOfOneSegment = 50;
constexpr int kLivesOfOneHandle = 20;
constexpr auto kLonger = std::chrono::milliseconds(20);

// Shared by all processes, beside the segment.
struct Tally {
  std::atomic<u64> views, misses, errors, puts;
};

Tally& shared_tally() {
  void* place = ::mmap(nullptr, sizeof(Tally), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (place == MAP_FAILED) std::abort();
  return *static_cast<Tally*>(place);
}

void read(Participant& self, Random& random, Tally& tally, const std::atomic<bool>& stop) {
  const std::vector<std::byte> arena(Victim::kArena);
  self.join("reader", 1, kLonger);
  for (int turn = 0; turn < 200 && !stop; ++turn) {
    if (const auto view = self.pin(key(random() % kKeys))) {
      tally.views += read_view(*view, arena);
      self.settle(view->token, 1);
      self.unpin(view->token);
    } else {
      ++tally.misses;
    }
    if (turn % 50 == 0) self.maintain(kLonger);
  }
  self.leave(kLonger);
}

void produce(Participant& self, Random& random, Tally& tally, const std::atomic<bool>& stop) {
  std::vector<std::byte> arena(Victim::kArena);
  self.join("producer", 2, kLonger);
  ArenaRecord record;
  record.nbytes = arena.size();
  self.set_arena(record, kLonger);
  for (int turn = 0; turn < 200 && !stop; ++turn) {
    const u64 nbytes = 1 + random() % 700;
    const Placement placed = self.reserve(request(random() % kKeys, nbytes, random() % 3), kLonger);
    if (placed.outcome != Outcome::kReserved) continue;
    if (placed.offset > arena.size() || nbytes > arena.size() - placed.offset) std::abort();
    std::fill_n(arena.begin() + static_cast<std::ptrdiff_t>(placed.offset), nbytes, std::byte{2});
    self.publish(*placed.token, 0);
    ++tally.puts;
  }
  self.leave(kLonger);
}

using Life = void (*)(Participant&, Random&, Tally&, const std::atomic<bool>&);

// A handle that is there goes on with a header that nobody would attach to any more, so it has many lives.
void live_for_ever(Life life, const TestSegment& segment, u64 seed, Tally& tally,
                   const std::atomic<bool>& stop) {
  Random random(seed);
  while (!stop) {
    const bool attached = unless_refused([&] {
      const auto self = segment.handle();
      for (int lives = 0; lives < kLivesOfOneHandle && !stop; ++lives) {
        if (!unless_refused([&] { life(*self, random, tally, stop); })) ++tally.errors;
        if (self->slot() >= 0) unless_refused([&] { self->leave(kLonger); });
      }
    });
    if (!attached) ++tally.errors;
  }
}

pid_t in_process(Life life, const TestSegment& segment, u64 seed, Tally& tally) {
  const pid_t child = ::fork();
  if (child < 0) std::abort();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const std::atomic<bool> never{false};
    live_for_ever(life, segment, seed, tally, never);
    ::_exit(0);
  }
  return child;
}

// False when it had ended before, which it does by a fault only.
bool end_process(pid_t process) {
  ::kill(process, SIGKILL);
  int status = 0;
  ::waitpid(process, &status, 0);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

// A segment that is damaged for long enough only says no, so each gets a limited number.
bool damage_under_live_participants(u64 damages, Random& random, Tally& tally) {
  Victim victim;
  const TestSegment& segment = victim.segment();
  const pid_t processes[] = {in_process(produce, segment, random(), tally),
                             in_process(read, segment, random(), tally)};
  std::atomic<bool> stop{false};
  std::thread threads[] = {
      std::thread([&, seed = random()] { live_for_ever(produce, segment, seed, tally, stop); }),
      std::thread([&, seed = random()] { live_for_ever(read, segment, seed, tally, stop); })};
  for (; damages > 0; --damages) {
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 1000));
    victim.damage(random);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  bool lived = true;
  for (const pid_t process : processes) lived = end_process(process) && lived;
  return lived;
}

}  // namespace

int main(int count, char** arguments) {
  const RunOf run = run_of(count, arguments, 4'000);
  Random random(run.seed);
  Tally& tally = shared_tally();
  u64 damages = 0;
  while (damages < run.corruptions) {
    const u64 part = std::min(kDamagesOfOneSegment, run.corruptions - damages);
    if (!damage_under_live_participants(part, random, tally)) {
      return fail("a process ended by itself while words were damaged");
    }
    damages += part;
  }
  const auto figure = [](const std::atomic<u64>& value) {
    return static_cast<unsigned long long>(value.load());
  };
  std::printf("meanwhile %llu views read, %llu misses, %llu errors, %llu puts\n", figure(tally.views),
              figure(tally.misses), figure(tally.errors), figure(tally.puts));
  if (tally.views == 0 || tally.misses == 0 || tally.errors == 0 || tally.puts == 0) {
    return fail("one of the right answers never came");
  }
  return tried(damages);
}
