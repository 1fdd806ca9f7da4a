// What every fuzz program is told and says: PROGRAM [CORRUPTIONS [SEED]].
#pragma once

#include <cstdio>
#include <cstdlib>
#include <random>

namespace fuzz {

struct RunOf {
  std::uint64_t corruptions;
  std::uint64_t seed;  // printed: the same seed tries the same corruptions again
};

inline RunOf run_of(int count, char** arguments, std::uint64_t corruptions) {
  const RunOf run{count > 1 ? std::strtoull(arguments[1], nullptr, 10) : corruptions,
                  count > 2 ? std::strtoull(arguments[2], nullptr, 10) : std::random_device{}()};
  std::printf("seed %llu\n", static_cast<unsigned long long>(run.seed));
  std::fflush(stdout);
  return run;
}

// The last line; a run that tried nothing has not passed.
inline int tried(std::uint64_t corruptions) {
  std::printf("corruptions tried: %llu\n", static_cast<unsigned long long>(corruptions));
  return corruptions > 0 ? 0 : 1;
}

inline int fail(const char* what) {
  std::printf("FAILED: %s\n", what);
  return 1;
}

}  // namespace fuzz
