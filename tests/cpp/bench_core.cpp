// Nanoseconds per operation with a full directory, one thread. Prints; asserts nothing.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "fixture.h"

using namespace fixture;

namespace {

// The quickest and the middle one of many batches: other work on the machine is in neither, or little.
template <class Body>
void measure(const char* name, u64 rounds, Body body) {
  constexpr u64 kBatches = 50;
  std::vector<double> spent;
  for (u64 batch = 0; batch < kBatches; ++batch) {
    const auto begin = Clock::now();
    for (u64 i = 0; i < rounds / kBatches; ++i) body(batch * (rounds / kBatches) + i);
    const std::chrono::duration<double, std::nano> took = Clock::now() - begin;
    spent.push_back(took.count() / static_cast<double>(rounds / kBatches));
  }
  std::sort(spent.begin(), spent.end());
  std::printf("%-28s %10.1f ns  (median %.1f)\n", name, spent.front(), spent[kBatches / 2]);
}

}  // namespace

int main() {
  constexpr u64 kItems = 4096;
  const TestSegment segment(kItems);
  const auto e = segment.producer(kItems * kAlignment);
  const auto pd = segment.reader();
  for (u64 i = 0; i < kItems - 1; ++i) put(*e, request(i, 64, 1));
  u64 found = 0;
  const auto random = [](u64 i) { return i * 2654435761 % (kItems - 1); };
  measure("find, one hot key", 1'000'000, [&](u64) { found += pd->find(key(7)).has_value(); });
  measure("find, 4095 keys", 1'000'000, [&](u64 i) { found += pd->find(key(random(i))).has_value(); });
  measure("find, absent", 1'000'000, [&](u64 i) { found += pd->find(key(kItems + i)).has_value(); });
  measure("pin + unpin, one hot key", 1'000'000, [&](u64) { pd->unpin(pd->pin(key(7))->token); });
  measure("pin + unpin, 4095 keys", 1'000'000, [&](u64 i) { pd->unpin(pd->pin(key(random(i)))->token); });
  [[maybe_unused]] const auto held = pd->pin(key(7));
  measure("pin + unpin, already held", 1'000'000, [&](u64) { pd->unpin(pd->pin(key(7))->token); });
  measure("announce + settle", 20'000,
          [&](u64) { pd->settle(*pd->announce(key(7), 1, kTtl, kPatience).token, 1); });
  measure("reserve + publish + settle", 5'000, [&](u64 i) {
    const Placement placed = put(*e, request(kItems + i, 64, 1));
    e->settle(*placed.token, 1);
  });
  measure("maintain", 1'000, [&](u64) { e->maintain(kPatience); });
  std::printf("(%llu found)\n", static_cast<unsigned long long>(found));
  return 0;
}
