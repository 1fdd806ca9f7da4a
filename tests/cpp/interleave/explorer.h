// Runs the actors of a scenario through every interleaving, with a crash at any step.
//
// Depth first, by running again: an execution follows the choices made so far, then goes on with
// the first one everywhere. A state that was seen before is not gone into again. What a state is: all
// shared places, each actor's place in its program with everything it has read since its operation
// began, its process' counts, and the truth.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "fiber.h"
#include "truth.h"
#include "world.h"

namespace interleave {

class Actor;
class Process;

struct Scenario {
  std::string name;
  // By actor, the process it belongs to; processes count from 0.
  std::vector<int> actors;
  std::vector<std::function<void(Actor&)>> programs;
  // In one go, before anybody moves.
  std::function<void(std::vector<std::unique_ptr<Actor>>&)> setup;
  std::vector<int> may_crash = {};
  int crashes = 0;
  bool writing_is_fine = false;
  bool big = false;  // left out of a quick run
};

struct Figures {
  u64 states = 0;
  u64 executions = 0;
  u64 steps = 0;
};

class Explorer {
 public:
  // What went wrong, with the steps that lead there; empty when nothing did.
  std::string explore(const Scenario& scenario, u64 most_states);
  const Figures& figures() const { return figures_; }

  World& world() { return world_; }
  Truth& truth() { return truth_; }

  // For the policy. Outside fibers they act at once.
  u64 load(const u64& word) { return in_setup_ ? word : load_watched(word); }
  void store(u64& word, u64 value);
  bool compare_exchange(u64& word, u64& expected, u64 desired);
  u64 now();
  int owner(unsigned place);
  void lock(unsigned place, int owner);
  void unlock(unsigned place);
  bool try_lock(unsigned place, int owner);
  void release(unsigned place, int owner);
  // For operations of the model itself.
  u64 get(unsigned place);
  void set(unsigned place, u64 value);
  // Until that actor has left something there, or never will.
  void wait_for_mail(unsigned giver);
  // Whose operation this is, also outside fibers.
  void act_for(Actor* actor) { acting_ = actor; }
  // The actor with that number, or nothing when it is not one of the scenario.
  const Actor* actor(unsigned number) const {
    return number < actors_.size() ? actors_[number].get() : nullptr;
  }

 private:
  using Choice = int;  // an actor, or -1 - process for its crash
  struct Node {
    std::array<Choice, 12> choices{};
    unsigned count = 0;
    unsigned next = 0;
    Choice chosen() const { return choices[next]; }
  };

  void begin(const Scenario& scenario);
  bool run_once(const Scenario& scenario);  // false when something is wrong
  Node choices(const Scenario& scenario) const;
  void perform(Choice choice);
  void crash(int process);
  void finish(const Scenario& scenario);
  u64 state() const;
  bool blocked(const Actor& actor) const;
  std::string story(const Scenario& scenario);

  u64 load_watched(const u64& word);
  void reach(unsigned place, bool writes, const char* what);
  void pause_at(unsigned place, const char* what);
  void observe(unsigned place, u64 value);
  unsigned acting() const;

  World world_;
  Truth truth_{world_};
  std::vector<std::unique_ptr<Process>> processes_;
  std::vector<std::unique_ptr<Actor>> actors_;
  std::vector<Node> path_;
  std::unordered_set<u64> seen_;
  std::array<std::function<void()>, 8> bodies_;
  Actor* current_ = nullptr;  // whose fiber runs
  Actor* acting_ = nullptr;   // whose operation it is
  bool recording_ = false;
  bool in_setup_ = false;
  int crashes_left_ = 0;
  std::vector<std::string> steps_;
  Figures figures_;
};

namespace detail {
extern Explorer instance;
}
inline Explorer& explorer() { return detail::instance; }

}  // namespace interleave
