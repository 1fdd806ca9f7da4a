// Threads on one mapping: what ThreadSanitizer can see.
#include <atomic>
#include <thread>

#include "check.h"
#include "fixture.h"

using namespace fixture;

namespace {

template <class Body>
void in_threads(unsigned count, Body body) {
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < count; ++t) threads.emplace_back(body, t);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

TEST(threads_that_pin_and_unpin_leave_no_hold) {
  const TestSegment segment;
  const auto e = segment.producer(1 << 20);
  put(*e, request(0, 64, 1));
  std::atomic<int> missed{0};
  in_threads(4, [&](unsigned) {
    for (int i = 0; i < 5000; ++i) {
      const auto pin = e->pin(key(0));
      if (!pin) {
        ++missed;
        continue;
      }
      e->unpin(pin->token);
    }
  });
  CHECK(missed == 0);
  CHECK(e->holds() == 0 && e->total_holds() == 0);
  CHECK(e->find(key(0)).has_value());
}

TEST(an_entry_is_never_freed_under_a_view) {
  const TestSegment segment;
  const auto e = segment.producer(64 * kAlignment);
  // What each extent holds, written before publish and read under a pin.
  std::array<std::atomic<u64>, 64> bytes{};
  std::atomic<bool> stop{false};
  std::atomic<u64> wrong{0};
  std::atomic<u64> reads{0};
  std::thread writer([&] {
    for (u64 i = 0; i < 4000 || reads == 0; ++i) {
      const u64 number = i % 8;
      const Placement placed = e->reserve(request(number, 64, 1), kPatience);
      if (placed.outcome != Outcome::kReserved) continue;
      bytes[placed.offset / kAlignment].store(~u64{0}, std::memory_order_relaxed);
      bytes[placed.offset / kAlignment].store(number, std::memory_order_relaxed);
      e->publish(*placed.token, 0);
      if (i % 3 == 0) e->settle(*placed.token, 1);
    }
    stop = true;
  });
  in_threads(3, [&](unsigned t) {
    for (u64 i = t; !stop; ++i) {
      const u64 number = i % 8;
      const auto pin = e->pin(key(number));
      if (!pin) continue;
      e->settle(pin->token, 1);
      std::this_thread::yield();
      const auto& extent = bytes[pin->fields.offset / kAlignment];
      wrong += extent.load(std::memory_order_relaxed) != number;
      ++reads;
      e->unpin(pin->token);
    }
  });
  writer.join();
  CHECK(wrong == 0);
  CHECK(reads > 0);
  CHECK(e->total_holds() == 0);
}

TEST(writers_readers_and_a_timer_share_one_handle) {
  const TestSegment segment(32);
  const auto e = segment.producer(16 * kAlignment);
  in_threads(4, [&](unsigned t) {
    for (u64 i = 0; i < 400; ++i) {
      const u64 number = (i * 7 + t) % 24;
      switch (t) {
        case 0:
        case 1: {
          const Placement placed =
              e->reserve(request(number, 64 + 200 * (i % 3), i % 2, i % 3 != 0, 0), kPatience);
          if (placed.outcome != Outcome::kReserved) break;
          i % 5 == 0 ? e->abort(*placed.token) : e->publish(*placed.token, i % 2);
          break;
        }
        case 2:
          if (const auto pin = e->pin(key(number))) e->unpin(pin->token);
          e->announce(key(number), 1, 0, kPatience);
          e->settle(key(number), 1);
          break;
        default:
          e->maintain(kPatience);
          (void)e->fits(static_cast<unsigned>(e->slot()), 64);
      }
    }
  });
  CHECK(e->total_holds() == 0);
  CHECK(e->leave(kPatience));
}

TEST(the_last_view_ends_a_leave_in_whatever_thread_it_dies) {
  const TestSegment segment;
  const auto e = segment.producer(1 << 20);
  for (int round = 0; round < 50; ++round) {
    const auto pd = segment.reader();
    const Placement placed = put(*e, request(0, 64, 1));
    const auto first = pd->pin(key(0));
    const auto second = pd->pin(key(0));
    in_threads(3, [&](unsigned t) {
      if (t == 0) {
        pd->leave(kPatience);
      } else {
        pd->unpin(t == 1 ? first->token : second->token);
      }
    });
    CHECK(pd->slot() == -1);
    CHECK(!e->anyone_else());
    if (placed.token) e->settle(*placed.token, 1);
  }
}
