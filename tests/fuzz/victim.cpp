#include "victim.h"

#include <atomic>

namespace fuzz {

Victim::Victim() : producer_(segment_.producer(kArena)), reader_(segment_.reader()) {
  put(*producer_, request(1, 100, 2));
  put(*producer_, request(2, 300, 1, false));
  producer_->reserve(request(3, 50, 1), kPatience);
  reader_->pin(key(1));
}

u64 Victim::value(u64 word) const {
  return std::atomic_ref<u64>(static_cast<u64*>(mapping_.data())[word]).load(std::memory_order_relaxed);
}

void Victim::damage(const Damage& damage) {
  std::atomic_ref<u64>(static_cast<u64*>(mapping_.data())[damage.word])
      .store(damage.value, std::memory_order_relaxed);
}

void Victim::damage(Random& random) {
  const u64 word = aimed_word(geometry_, random);
  damage({word, aimed_value(value(word), random)});
}

void Victim::attach() {
  unless_refused([&] {
    const auto late = segment_.handle();
    unless_refused([&] { late->join("late", 3, kShort); });
    unless_refused([&] { late->maintain(kShort); });
    (void)late->segment().description();
  });
}

void Victim::use(u64 choice) {
  for (Participant* who : {producer_.get(), reader_.get()}) exercise_reader(*who, choice, arena_);
  exercise_producer(*producer_, choice, arena_);
  if (choice % 7 == 0) attach();
  if (choice % 11 == 0) unless_refused([&] { producer_->leave(kShort); });
}

}  // namespace fuzz
