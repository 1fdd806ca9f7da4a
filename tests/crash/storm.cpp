// storm [KILLS]
//
// Producers and readers put, read, announce, settle, evict, leave and join at random, and are killed at
// random, one after the other. No reader may ever see a wrong byte, and when all is over nothing may
// be held, announced or used.
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <random>
#include <thread>

#include "../cpp/fixture.h"
#include "payload.h"

using namespace fixture;
using Handle = std::shared_ptr<Participant>;
using Random = std::mt19937_64;

namespace {

constexpr u64 kItems = 64;
constexpr u64 kKeys = 40;
constexpr u64 kArena = 4096;
constexpr u64 kMostArenas = 1 << 20;
constexpr unsigned kProducers = 4;
constexpr unsigned kReaders = 4;
constexpr u64 kShortTtl = 20'000'000;

// Shared by all processes, beside the segment.
struct Tally {
  std::atomic<u64> reads, puts, wrong, failures;
};

void* shared_memory(std::size_t nbytes) {
  void* place =
      ::mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (place == MAP_FAILED) std::abort();
  return place;
}

class Storm {
 public:
  Storm()
      : tally_(*static_cast<Tally*>(shared_memory(sizeof(Tally)))),
        arenas_(static_cast<std::byte*>(shared_memory(kMostArenas * kArena))) {}

  const TestSegment& segment() const { return segment_; }
  Tally& tally() { return tally_; }
  // An incarnation is never used twice, and so neither is the memory of an arena.
  volatile u64* bytes(ArenaRef arena, u64 offset) const {
    const u64 number = arena.incarnation - first_incarnation_;
    if (number >= kMostArenas) std::abort();
    return reinterpret_cast<u64*>(arenas_ + number * kArena + offset);
  }

  // What every participant does when it joins and by timer.
  static void collect_dead(Participant& p) {
    p.maintain(kPatience);
    for (unsigned slot = 0; slot < kMaxParticipants; ++slot) {
      const auto arena = p.arena(slot);
      if (arena && !p.owner_alive(slot)) p.forget_arena(arena->ref, kPatience);
    }
  }

  // Under a hold; false when a byte is wrong.
  bool right(const Found& view) {
    const u64 number = view.fields.digest[0];
    return view.fields.nbytes == bytes_of(number) &&
           storm::payload_is_right(bytes(view.fields.arena, view.fields.offset), number);
  }

  void produce(Random random) {
    for (;;) {
      const Handle self = joined("producer");
      ArenaRecord record;
      record.nbytes = kArena;
      self->set_arena(record, kPatience);
      const ArenaRef own = self->arena(static_cast<unsigned>(self->slot()))->ref;
      for (u64 turns = 20 + random() % 200; turns > 0; --turns) produce_once(*self, own, random);
      self->leave(kPatience);
    }
  }

  void consume(Random random) {
    for (;;) {
      const Handle self = joined("reader");
      std::vector<Found> views;
      for (u64 turns = 20 + random() % 400; turns > 0; --turns) {
        if (const auto view = self->pin(key(random() % kKeys))) {
          views.push_back(*view);
          if (random() % 2 == 0) self->settle(view->token, 1);
        }
        if (random() % 8 == 0) ::sched_yield();
        while (!views.empty() && (views.size() > 3 || random() % 2 == 0)) drop_one(*self, views, random);
        if (random() % 50 == 0) self->maintain(kPatience);
      }
      // With views, so that the last of them ends it.
      self->leave(kPatience);
      while (!views.empty()) drop_one(*self, views, random);
    }
  }

  void drop_one(Participant& self, std::vector<Found>& views, Random& random) {
    std::swap(views[random() % views.size()], views.back());
    tally_.wrong += !right(views.back());
    ++tally_.reads;
    self.unpin(views.back().token);
    views.pop_back();
  }

 private:
  static u64 bytes_of(u64 number) { return storm::bytes_of(number); }

  Handle joined(const char* role) {
    Handle self = segment_.handle();
    collect_dead(*self);
    self->join(role, 1, kPatience);
    return self;
  }

  void produce_once(Participant& self, ArenaRef own, Random& random) {
    const u64 number = random() % kKeys;
    switch (random() % 8) {
      case 0:
        self.announce(key(number), 1 + random() % 2, kShortTtl, kPatience);
        return;
      case 1:
        collect_dead(self);
        return;
      case 2:
        if (const auto found = self.find(key(number))) self.settle(found->token, 1);
        return;
      default:
        break;
    }
    const bool deallocate = random() % 3 != 0;
    const Placement placed =
        self.reserve(request(number, bytes_of(number), random() % 3, deallocate, kShortTtl), kPatience);
    if (placed.outcome != Outcome::kReserved) return;
    storm::write_payload(bytes(own, placed.offset), number);
    if (random() % 8 == 0) {
      self.abort(*placed.token);
    } else {
      self.publish(*placed.token, deallocate ? random() % 2 : 0);
      ++tally_.puts;
    }
  }

  TestSegment segment_{kItems};
  u64 first_incarnation_ = segment_.reader()->incarnation();
  Tally& tally_;
  std::byte* arenas_;
};

pid_t start(Storm& storm, unsigned worker, u64 seed) {
  const pid_t child = ::fork();
  if (child < 0) std::abort();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    try {
      worker < kProducers ? storm.produce(Random(seed)) : storm.consume(Random(seed));
    } catch (const std::exception& error) {
      ++storm.tally().failures;
      std::fprintf(stderr, "worker %u: %s\n", worker, error.what());
    }
    ::_exit(1);
  }
  return child;
}

int fail(const char* what) {
  std::printf("FAILED: %s\n", what);
  return 1;
}

}  // namespace

int main(int count, char** arguments) {
  const u64 kills = count > 1 ? std::strtoull(arguments[1], nullptr, 10) : 10'000;
  const u64 seed = std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  Random random(seed);
  Storm storm;
  const Handle watcher = storm.segment().reader();
  std::vector<pid_t> workers;
  for (unsigned w = 0; w < kProducers + kReaders; ++w) workers.push_back(start(storm, w, random()));

  std::optional<Found> kept;  // a view that outlives many of them
  for (u64 killed = 0; killed < kills; ++killed) {
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
    const auto victim = static_cast<unsigned>(random() % workers.size());
    ::kill(workers[victim], SIGKILL);
    int status = 0;
    ::waitpid(workers[victim], &status, 0);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
      return fail("a worker ended otherwise than killed");
    workers[victim] = start(storm, victim, random());
    if (kept && killed % 16 == 0) {
      if (!storm.right(*kept)) return fail("bytes changed under a view");
      watcher->unpin(kept->token);
      kept.reset();
    }
    if (!kept) kept = watcher->pin(key(random() % kKeys));
    if (killed % 64 == 0) Storm::collect_dead(*watcher);
    if (storm.tally().wrong != 0) return fail("a reader saw wrong bytes");
  }
  for (const pid_t worker : workers) {
    ::kill(worker, SIGKILL);
    ::waitpid(worker, nullptr, 0);
  }
  if (kept) watcher->unpin(kept->token);

  Storm::collect_dead(*watcher);
  watcher->maintain(kPatience);
  const Tally& tally = storm.tally();
  std::printf("%llu puts, %llu reads checked byte by byte\n",
              static_cast<unsigned long long>(tally.puts.load()),
              static_cast<unsigned long long>(tally.reads.load()));
  if (tally.wrong != 0) return fail("a reader saw wrong bytes");
  if (tally.failures != 0) return fail("a worker failed");
  if (tally.reads == 0 || tally.puts == 0) return fail("nothing was put or read");
  if (watcher->total_holds() != 0) return fail("something is held at the end");
  if (watcher->participants().size() != 1) return fail("a dead participant is remembered");
  for (u64 i = 0; i < watcher->segment().view().geometry.entry_count; ++i) {
    if (watcher->snapshot(i)) return fail("something is announced or used at the end");
  }
  std::printf("kills survived: %llu\n", static_cast<unsigned long long>(kills));
  return 0;
}
