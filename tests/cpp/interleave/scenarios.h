// What is explored. Each scenario is small, so that nothing of it needs to be left out.
#pragma once

#include "actor.h"

namespace interleave {

using Actors = std::vector<std::unique_ptr<Actor>>;

inline constexpr u64 K = kTwin;
inline constexpr u64 L = 12;

// The entries that are taken first, in this order; all others were reserved long after.
void prefer_entries(u64 count);
// Joins everybody who has not joined; the first `producers` processes with an arena of so many units.
void gather(Actors& actors, unsigned producers, unsigned units, u64 entries);

std::vector<Scenario> scenarios_of_two();
std::vector<Scenario> scenarios_of_three();

}  // namespace interleave
