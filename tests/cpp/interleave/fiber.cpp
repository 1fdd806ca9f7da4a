#include "fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <new>

namespace interleave {
namespace {

Fiber* running = nullptr;
jmp_buf scheduler;

constexpr std::size_t kPool = 4 << 20;
alignas(16) std::byte pool[kPool];
std::size_t used = 0;

bool in_pool(const void* pointer) {
  const auto at = reinterpret_cast<std::uintptr_t>(pointer);
  const auto begin = reinterpret_cast<std::uintptr_t>(pool);
  return at >= begin && at < begin + kPool;
}

constexpr std::size_t kStack = 256 << 10;
void* spare_stacks[64];
std::size_t spare_count = 0;

void* spare_stack() {
  if (spare_count > 0) return spare_stacks[--spare_count];
  void* stack = ::mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (stack == MAP_FAILED) std::abort();
  return stack;
}

void* allocate(std::size_t nbytes) {
  if (running != nullptr) {
    nbytes = (nbytes + 15) / 16 * 16;
    if (used + nbytes > kPool) std::abort();
    void* place = pool + used;
    used += nbytes;
    return place;
  }
  void* place = std::malloc(nbytes == 0 ? 1 : nbytes);
  if (place == nullptr) std::abort();
  return place;
}

void release(void* pointer) noexcept {
  if (!in_pool(pointer)) std::free(pointer);
}

}  // namespace

// Stacks are used again and again: there are millions of executions, with a few fibers each.
Fiber::Fiber() : stack_(spare_stack()) {}
Fiber::~Fiber() { spare_stacks[spare_count++] = stack_; }

void Fiber::start(const std::function<void()>* body) {
  body_ = body;
  started_ = finished_ = false;
  ::getcontext(&context_);
  context_.uc_stack.ss_sp = stack_;
  context_.uc_stack.ss_size = kStack;
  context_.uc_link = nullptr;
  ::makecontext(&context_, &Fiber::entry, 0);
}

void Fiber::entry() {
  Fiber* self = running;
  (*self->body_)();
  self->finished_ = true;
  running = nullptr;
  ::_longjmp(scheduler, 1);
}

// swapcontext() would be the plain way, but makes a system call each time.
void Fiber::resume() {
  if (finished_) std::abort();
  running = this;
  if (::_setjmp(scheduler) != 0) return;
  if (started_) ::_longjmp(here_, 1);
  started_ = true;
  ::setcontext(&context_);
}

void Fiber::pause() {
  Fiber* self = running;
  if (::_setjmp(self->here_) != 0) return;
  running = nullptr;
  ::_longjmp(scheduler, 1);
}

bool Fiber::inside() { return running != nullptr; }

void Fiber::forget_memory() { used = 0; }

}  // namespace interleave

void* operator new(std::size_t nbytes) { return interleave::allocate(nbytes); }
void operator delete(void* pointer) noexcept { interleave::release(pointer); }
void operator delete(void* pointer, std::size_t) noexcept { interleave::release(pointer); }
