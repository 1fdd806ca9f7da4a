// Actors as fibers: each has a stack of its own and runs until it gives the word back.
//
// What a fiber allocates comes from a pool that is emptied between executions: an execution that is
// cut short leaves its fibers in the middle of something, and nothing of that may pile up.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <array>
#include <cstddef>
#include <functional>

namespace interleave {

class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Prepares to run `body` from its beginning; whatever ran before is forgotten.
  void start(const std::function<void()>* body);
  // Runs until the body calls pause() or ends.
  void resume();
  bool finished() const { return finished_; }

  static void pause();          // called in a fiber
  static bool inside();         // whether the caller is a fiber
  static void forget_memory();  // of all fibers; none may be resumed afterwards

 private:
  static void entry();

  void* stack_;
  ucontext_t context_{};
  jmp_buf here_{};
  const std::function<void()>* body_ = nullptr;
  bool started_ = false;
  bool finished_ = true;
};

}  // namespace interleave
