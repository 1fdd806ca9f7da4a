// The 64-bit word of an entry, the whole truth about its life:
//
//     state:2 | generation:12 | announced:14 | holders:36
//
// Pure functions, one for each row of the transition table (DESIGN.md, "The entry word"). Each
// takes the word as it was read and gives the word to swap in, or nothing when the row does not
// apply. The release rule lives in here, so it is always part of the same compare-and-swap.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>

namespace ec_ipc {

enum class State : unsigned { kFree = 0, kWriting = 1, kReady = 2 };

inline constexpr unsigned kHolderBits = 36;
inline constexpr unsigned kAnnouncedBits = 14;
inline constexpr unsigned kGenerationBits = 12;
inline constexpr std::uint32_t kMaxAnnounced = (1u << kAnnouncedBits) - 1;
inline constexpr std::uint32_t kGenerations = 1u << kGenerationBits;
static_assert(2 + kGenerationBits + kAnnouncedBits + kHolderBits == 64);

struct Word {
  State state = State::kFree;
  std::uint32_t generation = 0;
  std::uint32_t announced = 0;
  std::uint64_t holders = 0;

  static constexpr Word unpack(std::uint64_t bits) {
    return {static_cast<State>(bits >> 62),
            static_cast<std::uint32_t>(bits >> (kHolderBits + kAnnouncedBits)) & (kGenerations - 1),
            static_cast<std::uint32_t>(bits >> kHolderBits) & kMaxAnnounced,
            bits & ((1ULL << kHolderBits) - 1)};
  }
  constexpr std::uint64_t pack() const {
    return static_cast<std::uint64_t>(state) << 62 |
           static_cast<std::uint64_t>(generation) << (kHolderBits + kAnnouncedBits) |
           static_cast<std::uint64_t>(announced) << kHolderBits | holders;
  }
  constexpr bool operator==(const Word&) const = default;

  constexpr bool is(State wanted, std::uint32_t wanted_generation) const {
    return state == wanted && generation == wanted_generation;
  }
  // Only while WRITING, when exactly one bit is set.
  constexpr int writer() const {
    return state == State::kWriting && holders != 0 ? std::countr_zero(holders) : -1;
  }
  // The two bits can also say what no state is: then something else has written here.
  constexpr bool damaged() const { return state > State::kReady; }
  constexpr bool idle() const { return state == State::kReady && holders == 0; }
};

constexpr std::uint64_t holder_bit(unsigned slot) { return 1ULL << slot; }

namespace step {

using Next = std::optional<Word>;

constexpr Word freed(Word word) { return {State::kFree, word.generation, 0, 0}; }

// READY, no holds, no announcements and the flag: the last reader frees.
constexpr Word released(Word word, bool deallocate) {
  return word.idle() && word.announced == 0 && deallocate ? freed(word) : word;
}

// A counter that is full cannot tell how many it stands for, so it never moves again.
constexpr std::uint32_t add(std::uint32_t announced, std::uint64_t n) {
  return n >= kMaxAnnounced - announced ? kMaxAnnounced : announced + static_cast<std::uint32_t>(n);
}
constexpr std::uint32_t take(std::uint32_t announced, std::uint64_t n) {
  if (announced == kMaxAnnounced) return announced;
  return n >= announced ? 0 : announced - static_cast<std::uint32_t>(n);
}

constexpr Next reserve(Word word, std::uint64_t bit, std::uint64_t n) {
  if (word.state != State::kFree) return {};
  return Word{State::kWriting, (word.generation + 1) % kGenerations, add(0, n), bit};
}

constexpr Next publish(Word word, std::uint32_t generation, std::uint64_t bit, std::uint64_t n,
                       bool deallocate) {
  if (!word.is(State::kWriting, generation) || word.holders != bit) return {};
  return released({State::kReady, generation, add(word.announced, n), 0}, deallocate);
}

constexpr Next abort(Word word, std::uint32_t generation, std::uint64_t bit) {
  if (!word.is(State::kWriting, generation) || word.holders != bit) return {};
  return freed(word);
}

constexpr Next announce(Word word, std::uint32_t generation, std::uint64_t n) {
  if (!word.is(State::kReady, generation)) return {};
  word.announced = add(word.announced, n);
  return word;
}

constexpr Next pin(Word word, std::uint64_t bit) {
  if (word.state != State::kReady) return {};
  word.holders |= bit;
  return word;
}

constexpr Next unpin(Word word, std::uint32_t generation, std::uint64_t bit, bool deallocate) {
  if (!word.is(State::kReady, generation) || (word.holders & bit) == 0) return {};
  word.holders &= ~bit;
  return released(word, deallocate);
}

constexpr Next settle(Word word, std::uint32_t generation, std::uint64_t n, bool deallocate) {
  if (word.state == State::kFree || word.generation != generation) return {};
  word.announced = take(word.announced, n);
  return released(word, deallocate);
}

// The caller has compared the deadline after it read this word.
constexpr Next expire(Word word, bool deallocate) {
  if (!word.idle() || word.announced == 0) return {};
  word.announced = 0;
  return released(word, deallocate);
}

constexpr Next evict(Word word) {
  if (!word.idle() || word.announced != 0) return {};
  return freed(word);
}

// Nobody can read it any more (its arena is gone, or an older epoch, or its word is damaged):
// announcements are moot.
constexpr Next discard(Word word) {
  if (!word.idle() && !(word.damaged() && word.holders == 0)) return {};
  return freed(word);
}

constexpr Next reclaim(Word word, std::uint64_t dead, bool deallocate) {
  if (word.state == State::kFree || (word.holders & dead) == 0) return {};
  if (word.state == State::kWriting) return freed(word);
  word.holders &= ~dead;
  return released(word, deallocate);
}

}  // namespace step
}  // namespace ec_ipc
