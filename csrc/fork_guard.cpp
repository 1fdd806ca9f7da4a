#include "fork_guard.h"

#include <pthread.h>

#include <mutex>
#include <unordered_set>

#include "participant.h"

namespace ec_ipc::fork_guard {
namespace {

struct Registry {
  std::mutex mutex;
  std::unordered_set<Participant*> participants;
};

// Never destroyed: handles may die after static destructors have run.
Registry& registry() {
  static auto* instance = new Registry;
  return *instance;
}

// Held over the fork, so that the child finds the list whole.
void before_fork() { registry().mutex.lock(); }
void after_in_parent() { registry().mutex.unlock(); }
void after_in_child() {
  for (Participant* participant : registry().participants) participant->orphan();
  registry().mutex.unlock();
}

}  // namespace

void enlist(Participant* participant) {
  static std::once_flag once;
  std::call_once(once, [] { ::pthread_atfork(before_fork, after_in_parent, after_in_child); });
  const std::lock_guard guard(registry().mutex);
  registry().participants.insert(participant);
}

void dismiss(Participant* participant) {
  const std::lock_guard guard(registry().mutex);
  registry().participants.erase(participant);
}

}  // namespace ec_ipc::fork_guard
