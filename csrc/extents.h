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

inline void sort_extents(std::vector<Extent>& used) {
  std::sort(used.begin(), used.end(), [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
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
