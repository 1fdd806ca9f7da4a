// Nanoseconds per operation of the directory. Prints one line of JSON a measurement; asserts nothing.
//
//   bench_core [SCALE]     SCALE times the usual number of operations
//
// One process with few and with many live entries, then 1 to 16 processes that pin and unpin a key
// each, or all of them one. All of it is CPU time: nothing here waits, and more processes than cores can
// be compared.
#include <sys/wait.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <vector>

#include "fixture.h"

using namespace fixture;

namespace {

constexpr u64 kItems = 4096;
constexpr u64 kBatches = 50;
double scale = 1;

void print(const char* name, u64 live, u64 processes, std::vector<double>& spent) {
  std::sort(spent.begin(), spent.end());
  const auto at = [&](double q) { return spent[static_cast<std::size_t>(q * double(spent.size() - 1))]; };
  std::printf(R"({"operation": "%s", "live": %llu, "processes": %llu, "min": %.1f, "q1": %.1f, )"
              R"("median": %.1f, "q3": %.1f})"
              "\n",
              name, static_cast<unsigned long long>(live), static_cast<unsigned long long>(processes),
              spent.front(), at(0.25), at(0.5), at(0.75));
  std::fflush(stdout);
}

double cpu_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return double(now.tv_sec) * 1e9 + double(now.tv_nsec);
}

struct Measured {
  const char* name;
  u64 rounds;
  std::function<void(u64)> body;
  std::vector<double> spent;
};

// Batches of all operations take turns: other work on the machine is in all of them alike.
void measure(u64 live, std::vector<Measured>& all) {
  for (u64 batch = 0; batch < kBatches; ++batch) {
    for (Measured& m : all) {
      const u64 each = std::max<u64>(1, static_cast<u64>(double(m.rounds) * scale / kBatches));
      const double begin = cpu_ns();
      for (u64 i = 0; i < each; ++i) m.body(batch * each + i);
      m.spent.push_back((cpu_ns() - begin) / double(each));
    }
  }
  for (Measured& m : all) print(m.name, live, 1, m.spent);
}

void single(u64 live) {
  const TestSegment segment(kItems);
  const auto e = segment.producer(kItems * kAlignment);
  const auto pd = segment.reader();
  for (u64 i = 0; i < live; ++i) put(*e, request(i, 64, 1));
  const auto random = [live](u64 i) { return key(i * 2654435761 % live); };
  volatile u64 found = 0;
  [[maybe_unused]] const auto held = pd->pin(key(2));
  u64 fresh = kItems;
  std::vector<Measured> all;
  // A cycle each: by the clock of that moment the other numbers can be understood.
  all.push_back({"1,000 additions",
                 20'000,
                 [&](u64 i) {
                   for (int n = 0; n < 1000; ++n) {
                     ++i;
                     asm volatile("" : "+r"(i));
                   }
                   found = found + i;
                 },
                 {}});
  all.push_back({"find", 400'000, [&](u64) { found = found + pd->find(key(7)).has_value(); }, {}});
  all.push_back(
      {"find, any key", 400'000, [&](u64 i) { found = found + pd->find(random(i)).has_value(); }, {}});
  all.push_back(
      {"find, absent", 400'000, [&](u64 i) { found = found + pd->find(key(kItems + i)).has_value(); }, {}});
  all.push_back({"pin + unpin", 400'000, [&](u64) { pd->unpin(pd->pin(key(7))->token); }, {}});
  all.push_back({"pin + unpin, any key", 400'000, [&](u64 i) { pd->unpin(pd->pin(random(i))->token); }, {}});
  all.push_back({"pin + unpin, held already", 400'000, [&](u64) { pd->unpin(pd->pin(key(2))->token); }, {}});
  all.push_back({"announce + settle",
                 10'000,
                 [&](u64) { pd->settle(*pd->announce(key(7), 1, kTtl, kPatience).token, 1); },
                 {}});
  all.push_back({"reserve + publish + settle",
                 5'000,
                 [&](u64) { e->settle(*put(*e, request(fresh++, 64, 1)).token, 1); },
                 {}});
  all.push_back({"maintain", 500, [&](u64) { e->maintain(kPatience); }, {}});
  measure(live, all);
}

// In a child: CPU nanoseconds per operation, one number a batch, into the pipe.
[[noreturn]] void child(const TestSegment& segment, u64 number, int pipe) {
  const auto own = segment.reader();
  const u64 each = std::max<u64>(1, static_cast<u64>(7'000 * scale));
  for (u64 batch = 0; batch < 20; ++batch) {
    const double begin = cpu_ns();
    for (u64 i = 0; i < each; ++i) own->unpin(own->pin(key(number))->token);
    const double spent = (cpu_ns() - begin) / double(each);
    if (::write(pipe, &spent, sizeof spent) != sizeof spent) ::_exit(1);
  }
  ::_exit(0);
}

std::vector<double> many(u64 processes, bool one_key) {
  const TestSegment segment(kItems);
  const auto e = segment.producer(kItems * kAlignment);
  for (u64 i = 0; i < 16; ++i) put(*e, request(i, 64, 1));
  int pipe[2];
  if (::pipe(pipe) != 0) std::abort();
  for (u64 n = 0; n < processes; ++n) {
    const pid_t pid = ::fork();
    if (pid < 0) std::abort();
    if (pid == 0) child(segment, one_key ? 0 : n, pipe[1]);
  }
  ::close(pipe[1]);
  std::vector<double> spent;
  for (double one = 0; ::read(pipe[0], &one, sizeof one) == sizeof one;) spent.push_back(one);
  ::close(pipe[0]);
  while (::wait(nullptr) > 0) {
  }
  if (spent.empty()) std::abort();
  return spent;
}

void all_counts(bool one_key) {
  std::map<u64, std::vector<double>> spent;
  for (int turn = 0; turn < 3; ++turn) {
    for (u64 processes : {1, 2, 4, 8, 16}) {
      const std::vector<double> more = many(processes, one_key);
      spent[processes].insert(spent[processes].end(), more.begin(), more.end());
    }
  }
  for (auto& [processes, all] : spent) {
    print(one_key ? "pin + unpin, one key for all" : "pin + unpin, a key each", 16, processes, all);
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count > 1) scale = std::atof(arguments[1]);
  for (u64 live : {u64{10}, u64{4000}}) single(live);
  for (bool one_key : {false, true}) all_counts(one_key);
  return 0;
}
