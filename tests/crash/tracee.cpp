#include "tracee.h"

#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <unordered_map>

namespace crash {
namespace {

// The operation's end, as an address. Not inlined, and not empty, or calls of it would go.
[[gnu::noinline]] void operation_has_ended() { asm volatile("nop" ::: "memory"); }
std::uint64_t end_address() { return reinterpret_cast<std::uint64_t>(&operation_has_ended); }

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::abort();
}

long request(int what, pid_t child, void* address, void* data) {
  errno = 0;
  const long result = ::ptrace(static_cast<__ptrace_request>(what), child, address, data);
  if (result == -1 && errno != 0) fail("ptrace");
  return result;
}

// False when the child is gone.
bool wait_for_stop(pid_t child) {
  int status = 0;
  if (::waitpid(child, &status, 0) != child) fail("waitpid");
  if (WIFSTOPPED(status)) {
    // A fault would stop it at the same instruction for ever.
    const int signal = WSTOPSIG(status);
    if (signal == SIGTRAP || signal == SIGSTOP) return true;
    std::fprintf(stderr, "the child got signal %d in its operation\n", signal);
    std::abort();
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) != 0) {
    std::fprintf(stderr, "the child ended with %d\n", WEXITSTATUS(status));
    std::abort();
  }
  return false;
}

std::uint64_t counter_of(pid_t child) {
  user_regs_struct registers{};
  request(PTRACE_GETREGS, child, nullptr, &registers);
  return registers.rip;
}

void step(pid_t child) {
  request(PTRACE_SINGLESTEP, child, nullptr, nullptr);
  if (!wait_for_stop(child)) fail("the child ended while it was stepped");
}

void kill(pid_t child) {
  ::kill(child, SIGKILL);
  int status = 0;
  while (::waitpid(child, &status, 0) == child && !WIFSIGNALED(status)) {
  }
}

pid_t start(const Program& program) {
  const pid_t child = ::fork();
  if (child < 0) fail("fork");
  if (child == 0) {
    program.prepare();
    ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
    ::raise(SIGSTOP);
    program.operation();
    operation_has_ended();
    ::_exit(0);
  }
  if (!wait_for_stop(child)) fail("the child ended before its operation");
  return child;
}

// Runs to the `times`-th execution of the instruction at `address`.
bool run_to(pid_t child, std::uint64_t address, unsigned times) {
  auto* place = reinterpret_cast<void*>(address);
  const long original = request(PTRACE_PEEKTEXT, child, place, nullptr);
  const long trap = (original & ~0xffL) | 0xcc;
  for (unsigned hit = 0; hit < times; ++hit) {
    request(PTRACE_POKETEXT, child, place, reinterpret_cast<void*>(trap));
    request(PTRACE_CONT, child, nullptr, nullptr);
    if (!wait_for_stop(child)) return false;
    user_regs_struct registers{};
    request(PTRACE_GETREGS, child, nullptr, &registers);
    if (registers.rip != address + 1) return false;
    registers.rip = address;
    request(PTRACE_SETREGS, child, nullptr, &registers);
    request(PTRACE_POKETEXT, child, place, reinterpret_cast<void*>(original));
    if (hit + 1 < times) step(child);
  }
  return true;
}

// Stepping from the beginning every time would be quadratic. An instruction that was executed only
// a few times before the wanted one is a place to run to.
struct Shortcut {
  std::size_t index = 0;  // instructions executed when it is reached
  std::uint64_t address = 0;
  unsigned times = 0;
};

Shortcut shortcut(const Trace& known, std::size_t count) {
  constexpr std::size_t kNear = 64;
  constexpr unsigned kTooOften = 40;
  static std::unordered_map<std::uint64_t, unsigned> seen;
  static const Trace* seen_in = nullptr;
  static std::vector<unsigned> nth;
  if (seen_in != &known) {
    seen.clear();
    nth.clear();
    for (const std::uint64_t address : known) nth.push_back(++seen[address]);
    seen_in = &known;
  }
  Shortcut best;
  for (std::size_t i = count; i-- > 0 && count - i < kNear * 8;) {
    if (i < known.size() && nth[i] <= kTooOften &&
        (best.times == 0 || nth[i] + (count - i) / 4 < best.times)) {
      best = {i, known[i], nth[i]};
      if (best.times == 1) break;
    }
  }
  return best;
}

}  // namespace

Trace trace(const Program& program) {
  Trace addresses;
  const pid_t child = start(program);
  for (std::uint64_t at = counter_of(child); at != end_address(); at = counter_of(child)) {
    addresses.push_back(at);
    step(child);
  }
  kill(child);
  return addresses;
}

bool kill_after(const Program& program, std::size_t count, const Trace& known) {
  const pid_t child = start(program);
  std::size_t done = 0;
  if (const Shortcut near = shortcut(known, count); near.times != 0) {
    // Where the run is not the one that is known (a clock that was read again), its end is as good.
    if (!run_to(child, near.address, near.times)) return false;
    done = near.index;
  }
  bool ended = false;
  for (; done < count && !ended; ++done) {
    step(child);
    ended = counter_of(child) == end_address();
  }
  kill(child);
  return !ended;
}

}  // namespace crash
