// What the bytes of an item must be: told by its key alone, different in every word.
#pragma once

#include <cstddef>
#include <cstdint>

namespace storm {

using u64 = std::uint64_t;

constexpr u64 word_of(u64 key, u64 index) {
  const u64 x = (key * 0x9e3779b97f4a7c15ULL + index) * 0xbf58476d1ce4e5b9ULL;
  return x ^ x >> 31;
}
constexpr u64 bytes_of(u64 key) { return 8 * (1 + key * 37 % 100); }

inline void write_payload(volatile u64* place, u64 key) {
  for (u64 i = 0; i < bytes_of(key) / 8; ++i) place[i] = ~word_of(key, i);  // as if half copied
  for (u64 i = 0; i < bytes_of(key) / 8; ++i) place[i] = word_of(key, i);
}
inline bool payload_is_right(const volatile u64* place, u64 key) {
  u64 wrong = 0;
  for (u64 i = 0; i < bytes_of(key) / 8; ++i) wrong |= place[i] ^ word_of(key, i);
  return wrong == 0;
}

}  // namespace storm
