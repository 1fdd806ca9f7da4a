// A child that runs one operation and dies after so many of its instructions.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace crash {

// The addresses of the instructions of one run of an operation, in order.
using Trace = std::vector<std::uint64_t>;

// In the child: `prepare` runs free, `operation` under the tracer.
struct Program {
  std::function<void()> prepare;
  std::function<void()> operation;
};

// One instruction at a time from the operation's first to its last.
Trace trace(const Program& program);

// Kills the child when it has executed `count` of the instructions, which are expected to be those of
// `known`. False when the operation had ended before.
bool kill_after(const Program& program, std::size_t count, const Trace& known);

}  // namespace crash
