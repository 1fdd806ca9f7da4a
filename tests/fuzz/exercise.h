// All that can be done with a segment, whatever its bytes say.
//
// What is refused says so by one of our own errors; any other exception, and any access outside of what
// is ours, ends the program.
#pragma once

#include <span>

#include "../cpp/fixture.h"

namespace fuzz {

using namespace fixture;

// How long damaged segments are waited for.
inline constexpr auto kShort = std::chrono::milliseconds(1);

// False when it was refused.
template <class Call>
bool unless_refused(Call&& call) {
  try {
    call();
    return true;
  } catch (const Error&) {
  } catch (const std::invalid_argument&) {
  }
  return false;
}

// All of a view's bytes, where an arena of this size would have them. False when it must be refused.
bool read_view(const Found& view, std::span<const std::byte> arena);

// Every look-up, record, pin and settlement, and maintenance. `choice` says which announcements are settled.
void exercise_reader(Participant& who, u64 choice, std::span<const std::byte> arena);

// One item put, or aborted, by the owner of the arena.
void exercise_producer(Participant& who, u64 choice, std::span<std::byte> arena);

}  // namespace fuzz
