// Free space of an arena, derived from the extents in use: nothing about it is ever stored.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace ec_ipc {

struct Extent {
  std::uint64_t begin;
  std::uint64_t end;
  std::uint64_t entry;
};

// By where they begin: counted into as many slices of the range as there are extents, which leaves
// little to sort. Thousands of extents come out of a hashed directory in no order at all, and a
// plain sort of them would be most of what a reservation costs.
inline void sort_extents(std::vector<Extent>& used) {
  const auto by_begin = [](const Extent& a, const Extent& b) { return a.begin < b.begin; };
  constexpr std::size_t kFew = 64;
  if (used.size() > kFew) {
    const auto last = std::max_element(used.begin(), used.end(), by_begin)->begin;
    const std::uint64_t slice = last / used.size() + 1;
    std::vector<std::uint32_t> place(used.size() + 1);
    for (const Extent& extent : used) ++place[extent.begin / slice + 1];
    for (std::size_t i = 1; i < place.size(); ++i) place[i] += place[i - 1];
    std::vector<Extent> counted(used.size());
    for (const Extent& extent : used) counted[place[extent.begin / slice]++] = extent;
    used.swap(counted);
  }
  // Insertion sort while the order is nearly right; extents that crowd into a few slices go the
  // ordinary way.
  std::size_t moves = 0;
  for (std::size_t i = 1; i < used.size(); ++i) {
    for (std::size_t j = i; j > 0 && by_begin(used[j], used[j - 1]); --j) {
      std::swap(used[j], used[j - 1]);
      if (++moves > 8 * used.size()) return std::sort(used.begin(), used.end(), by_begin);
    }
  }
}

// The lowest free offset where `nbytes` fit. `used` is sorted; overlaps in it do no harm.
inline std::optional<std::uint64_t> first_fit(const std::vector<Extent>& used, std::uint64_t arena_bytes,
                                              std::uint64_t nbytes) {
  std::uint64_t free_from = 0;
  for (const Extent& extent : used) {
    if (extent.begin >= free_from && extent.begin - free_from >= nbytes) return free_from;
    free_from = std::max(free_from, extent.end);
  }
  if (free_from <= arena_bytes && arena_bytes - free_from >= nbytes) return free_from;
  return std::nullopt;
}

}  // namespace ec_ipc
