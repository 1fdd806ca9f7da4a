// Copies into an arena, which the copying process will hardly read again.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace ec_ipc {

// From here on a copy would push everything else out of a core's caches, itself too.
inline constexpr std::size_t kStreamedBytes = std::size_t{4} << 20;
// A thread of its own pays from here on.
inline constexpr std::size_t kThreadBytes = std::size_t{4} << 20;

#if defined(__SSE2__)
// Past the caches: a store that need not read its line first saves a third of the traffic. Four pages
// take turns, so that four streams of memory are under way at a time. `to` is aligned to 16 bytes.
inline void stream_pages(std::byte* to, const std::byte* from, std::size_t pages) {
  constexpr std::size_t kPage = 4096;
  constexpr std::size_t kLine = 64;
  constexpr std::size_t kStreams = 4;
  for (std::size_t page = 0; page + kStreams <= pages; page += kStreams) {
    for (std::size_t line = 0; line < kPage; line += kLine) {
      for (std::size_t stream = 0; stream < kStreams; ++stream) {
        const std::size_t at = (page + stream) * kPage + line;
        const auto* source = reinterpret_cast<const __m128i*>(from + at);
        auto* target = reinterpret_cast<__m128i*>(to + at);
        for (std::size_t part = 0; part < kLine / sizeof(__m128i); ++part) {
          _mm_stream_si128(target + part, _mm_loadu_si128(source + part));
        }
      }
    }
  }
  _mm_sfence();  // streamed stores are in no order with others, and publish comes next
}
#endif

inline void copy_alone(std::byte* to, const std::byte* from, std::size_t nbytes) {
  std::size_t streamed = 0;
#if defined(__SSE2__)
  constexpr std::size_t kFourPages = 4 * 4096;
  if (nbytes >= kStreamedBytes && reinterpret_cast<std::uintptr_t>(to) % sizeof(__m128i) == 0) {
    streamed = nbytes / kFourPages * kFourPages;
    stream_pages(to, from, streamed / 4096);
  }
#endif
  std::memcpy(to + streamed, from + streamed, nbytes - streamed);
}

// The same by up to so many threads, this one among them.
inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t nbytes, std::size_t threads) {
  const std::size_t parts =
      std::clamp<std::size_t>(nbytes / kThreadBytes, 1, std::max<std::size_t>(threads, 1));
  constexpr std::size_t kLine = 64;
  const std::size_t part = nbytes / parts / kLine * kLine;
  std::vector<std::jthread> others;
  others.reserve(parts);
  std::size_t begin = 0;
  while (others.size() + 1 < parts) {
    try {
      others.emplace_back([=] { copy_alone(to + begin, from + begin, part); });
    } catch (const std::system_error&) {  // no more threads to be had: this one copies the rest
      break;
    }
    begin += part;
  }
  copy_alone(to + begin, from + begin, nbytes - begin);
}

}  // namespace ec_ipc
