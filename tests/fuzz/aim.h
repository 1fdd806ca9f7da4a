// Damages that are likelier to hurt than random ones: numbers where the core looks, values at limits.
#pragma once

#include <random>

#include "layout.h"

namespace fuzz {

using ec_ipc::u64;
using Random = std::mt19937_64;

// One word of the segment that is overwritten.
struct Damage {
  u64 word;
  u64 value;
};

// A word of the header, the records, the tags or the entries, each about as often.
u64 aimed_word(const ec_ipc::Geometry& geometry, Random& random);
// What might stand in a word instead of `before`.
u64 aimed_value(u64 before, Random& random);

}  // namespace fuzz
