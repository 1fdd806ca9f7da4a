// What this process has reserved in its own arena, so that a reservation need not look at every entry.
//
// Nothing of it is shared and all of it can be made again from the directory, which stays the truth:
// extents are compared with their entries before they are used, and the number of live entries is an
// upper bound, because only reservations make entries live and the directory numbers those.
#pragma once

#include <algorithm>
#include <vector>

#include "extents.h"
#include "layout.h"

namespace ec_ipc {

// Guarded by what guards reservations: the writer byte and the process mutex in front of it.
struct Ledger {
  ArenaRef arena{};
  u64 live = 0;              // entries of everybody, when all of them were last counted
  u64 sequence = 0;          // of reservations, at that moment
  std::vector<Extent> used;  // of the arena, sorted; an extent may have been freed since

  u64 live_at_most(u64 sequence_now) const { return live + (sequence_now - sequence); }

  void add(const Extent& extent) {
    const auto after = std::upper_bound(used.begin(), used.end(), extent,
                                        [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
    used.insert(after, extent);
  }
};

}  // namespace ec_ipc
