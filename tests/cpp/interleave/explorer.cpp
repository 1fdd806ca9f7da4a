#include "explorer.h"

#include <algorithm>

#include "actor.h"

namespace interleave {
namespace {

// Visitors who come when all is over.
constexpr int kCleaner = 20;
constexpr int kNewcomer = 21;
constexpr u64 kMuchLater = 100;
// With a new meeting place the work starts over; a few executions more may show others.
constexpr int kExecutionsBeforeStartingOver = 200;

}  // namespace

namespace detail {
Explorer instance;
}

std::string Explorer::explore(const Scenario& scenario, u64 most_states) {
  figures_ = {};
  world_.forget_meetings();
  for (;;) {
    world_.start_over();
    seen_.clear();
    path_.clear();
    int patience = kExecutionsBeforeStartingOver;
    for (bool more = true; more;) {
      if (!run_once(scenario)) return story(scenario);
      ++figures_.executions;
      if (seen_.size() > most_states) return "more than " + std::to_string(most_states) + " states";
      if (world_.found_new() && --patience == 0) break;
      while (!path_.empty() && path_.back().next + 1 == path_.back().count) path_.pop_back();
      more = !path_.empty();
      if (more) ++path_.back().next;
    }
    figures_.states = seen_.size();
    if (!world_.found_new()) return {};
  }
}

void Explorer::begin(const Scenario& scenario) {
  actors_.clear();
  processes_.clear();
  Fiber::forget_memory();
  world_.reset();
  truth_.reset();
  steps_.clear();
  crashes_left_ = scenario.crashes;
  for (unsigned a = 0; a < scenario.actors.size(); ++a) {
    const int process = scenario.actors[a];
    while (static_cast<int>(processes_.size()) <= process) {
      processes_.push_back(std::make_unique<Process>(static_cast<int>(processes_.size())));
    }
    actors_.push_back(std::make_unique<Actor>(a, *processes_[static_cast<std::size_t>(process)]));
  }
  in_setup_ = true;
  if (scenario.setup) scenario.setup(actors_);
  in_setup_ = false;
  for (unsigned a = 0; a < actors_.size(); ++a) {
    Actor& actor = *actors_[a];
    bodies_[a] = [&scenario, &actor, a] { scenario.programs[a](actor); };
    actor.fiber.start(&bodies_[a]);
    perform(static_cast<Choice>(a));
  }
}

bool Explorer::run_once(const Scenario& scenario) {
  begin(scenario);
  for (std::size_t depth = 0;; ++depth) {
    if (depth == path_.size()) {
      if (!truth_.wrong().empty()) return false;
      if (!seen_.insert(state()).second) return true;
      const Node node = choices(scenario);
      if (node.count == 0) {
        finish(scenario);
        return truth_.wrong().empty();
      }
      path_.push_back(node);
      ++figures_.steps;
    }
    perform(path_[depth].chosen());
    truth_.check_views();
  }
}

Explorer::Node Explorer::choices(const Scenario& scenario) const {
  Node node;
  for (const auto& actor : actors_) {
    if (!actor->process().alive || actor->fiber.finished() || blocked(*actor)) continue;
    node.choices[node.count++] = static_cast<Choice>(actor->number());
  }
  if (crashes_left_ == 0) return node;
  for (const int process : scenario.may_crash) {
    if (!processes_[static_cast<std::size_t>(process)]->alive) continue;
    const bool busy = std::any_of(actors_.begin(), actors_.end(), [&](const auto& actor) {
      return actor->process().number() == process && !actor->fiber.finished();
    });
    // Also those who have ended their program, for they may still hold something.
    if (busy || node.count != 0) node.choices[node.count++] = -1 - process;
  }
  return node;
}

void Explorer::perform(Choice choice) {
  if (choice < 0) return crash(-1 - choice);
  Actor& actor = *actors_[static_cast<std::size_t>(choice)];
  if (recording_ && actor.at[0] != 0) {
    steps_.push_back("actor " + std::to_string(choice) + " in " + actor.intent.name + ": " + actor.at + " " +
                     World::name(actor.at_place));
  }
  current_ = acting_ = &actor;
  actor.fiber.resume();
  current_ = nullptr;
}

void Explorer::crash(int process) {
  if (recording_) steps_.push_back("process " + std::to_string(process) + " is killed");
  --crashes_left_;
  processes_[static_cast<std::size_t>(process)]->alive = false;
  for (unsigned place = kWriterPlace; place < kClockPlace; ++place) {
    if (world_.owner(place) == process) world_.set_owner(place, kNobody);
  }
  // For the sake of meetings: whoever asks for liveness meets whoever may die.
  for (const auto& actor : actors_) {
    if (actor->process().number() != process) continue;
    const int slot = actor->process().core().slot();
    if (slot >= 0) world_.touch(actor->number(), kAlivePlace + static_cast<unsigned>(slot), true);
  }
  truth_.process_died(process);
}

bool Explorer::blocked(const Actor& actor) const {
  if (actor.waits_on == kPlaces) return false;
  if (actor.waits_for_mail) {
    const Actor& giver = *actors_[actor.waits_on - kMailPlace];
    return world_.get(actor.waits_on) == 0 && giver.process().alive && !giver.fiber.finished();
  }
  const int owner = world_.owner(actor.waits_on);
  if (owner == kNobody) return false;
  return actor.waits_on >= kMutexPlace || owner != actor.waits_as;
}

// All that counts when everybody has ended: what is left, and whether one can go on with it.
void Explorer::finish(const Scenario& scenario) {
  for (const auto& actor : actors_) {
    truth_.expect(actor->fiber.finished() || !actor->process().alive, "waits for ever: actor",
                  actor->number());
  }
  for (const auto& process : processes_) {
    for (unsigned slot = 0; slot < kMaxParticipants && process->alive; ++slot) {
      const bool owns = world_.owner(kAlivePlace + slot) == process->number();
      truth_.expect(owns == (static_cast<int>(slot) == process->core().slot()),
                    "has another liveness byte than its slot's: process",
                    static_cast<u64>(process->number()));
    }
  }
  for (const auto& process : processes_) {
    const int slot = process->core().slot();
    if (!process->alive || slot < 0) continue;
    truth_.expect(world_.view().participants[slot].incarnation == process->core().incarnation(),
                  "has the record of another: process", static_cast<u64>(process->number()));
  }
  if (!truth_.wrong().empty()) return;
  world_.set(kClockPlace, world_.now() + kMuchLater);
  Process cleaner(kCleaner);
  Actor cleaning(6, cleaner);
  cleaning.maintain();
  for (unsigned slot = 0; slot < kMaxParticipants; ++slot) {
    if (world_.view().arenas[slot].incarnation != 0 && !world_.alive(slot)) cleaning.forget_arena(slot);
  }
  cleaning.maintain();
  truth_.check_end(scenario.writing_is_fine);
  for (const auto& process : processes_) {
    if (!process->alive) continue;
    truth_.expect(process->core().holds().total() == truth_.views_of(process->number()),
                  "counts other views than it has: process", static_cast<u64>(process->number()));
  }
  Process newcomer(kNewcomer);
  Actor coming(7, newcomer);
  coming.join();
  coming.set_arena(1);
  coming.put(99);
  truth_.expect(coming.pin(99), "a newcomer cannot read what it has put");
  coming.settle();
  coming.unpin();
  truth_.check_views();
}

u64 Explorer::state() const {
  u64 sum = world_.hash() ^ mix(0x7e57, truth_.hash());
  for (const auto& actor : actors_) {
    if (actor->process().alive) sum ^= mix(actor->number() + 1, actor->hash());
  }
  for (const auto& process : processes_) {
    sum ^= mix(100 + static_cast<u64>(process->number()), process->alive ? process->hash() : 0);
  }
  return mix(sum, static_cast<u64>(crashes_left_));
}

std::string Explorer::story(const Scenario& scenario) {
  const std::string wrong = truth_.wrong();
  recording_ = true;
  begin(scenario);
  for (const Node& node : path_) perform(node.chosen());
  recording_ = false;
  std::string text = wrong + "\n";
  for (const std::string& step : steps_) text += "    " + step + "\n";
  return text;
}

// ---- what the policy calls

void Explorer::pause_at(unsigned place, const char* what) {
  current_->at = what;
  current_->at_place = place;
  Fiber::pause();
}

u64 Explorer::load_watched(const u64& word) {
  const unsigned place = world_.place_of(word);
  reach(place, false, "loads");
  if (acting_ != nullptr) truth_.loaded(place, acting_->order);
  observe(place, word);
  return word;
}

unsigned Explorer::acting() const { return current_ != nullptr ? current_->number() : kFinale; }

void Explorer::reach(unsigned place, bool writes, const char* what) {
  if (in_setup_ || !world_.touch(acting(), place, writes) || !Fiber::inside()) return;
  pause_at(place, what);
}

void Explorer::observe(unsigned place, u64 value) {
  if (current_ != nullptr && world_.is_meeting(place)) current_->history = mix(current_->history, value);
}

void Explorer::store(u64& word, u64 value) {
  const unsigned place = world_.place_of(word);
  reach(place, true, "stores");
  truth_.before_store(place, value);
  observe(place, 1);
  world_.set(place, value);
}

bool Explorer::compare_exchange(u64& word, u64& expected, u64 desired) {
  const unsigned place = world_.place_of(word);
  reach(place, true, "swaps");
  const int entry = world_.entry_of_word(place);
  if (word != expected) {
    expected = word;
    if (acting_ != nullptr) truth_.loaded(place, acting_->order);
    observe(place, mix(2, word));
    return false;
  }
  observe(place, 3);
  world_.set(place, desired);
  if (entry >= 0 && acting_ != nullptr) {
    const auto i = static_cast<u64>(entry);
    truth_.check_expiry(i, expected, desired, acting_->order, acting_->intent);
    truth_.word_changed(i, expected, desired, acting_->intent);
  }
  return true;
}

u64 Explorer::now() {
  const u64 now = get(kClockPlace);
  if (acting_ != nullptr && acting_->intent.ttl != 0) acting_->intent.deadline = now + acting_->intent.ttl;
  return now;
}

u64 Explorer::get(unsigned place) {
  reach(place, false, "reads");
  const u64 value = world_.get(place);
  observe(place, value);
  return value;
}

void Explorer::set(unsigned place, u64 value) {
  reach(place, true, "writes");
  observe(place, 4);
  world_.set(place, value);
}

int Explorer::owner(unsigned place) { return static_cast<int>(get(place)) - 1; }

void Explorer::lock(unsigned place, int owner) {
  if (!in_setup_ && Fiber::inside() && world_.touch(acting(), place, true)) {
    current_->waits_on = place;
    current_->waits_as = owner;
    current_->at = "locks";
    current_->at_place = place;
    Fiber::pause();
    current_->waits_on = kPlaces;
  }
  const int before = world_.owner(place);
  truth_.expect(before == kNobody || (before == owner && place < kMutexPlace),
                "a lock was taken though it is held: place", place);
  observe(place, 5);
  world_.set_owner(place, owner);
}

// Nobody can tell whether this comes at once or a little later, so it is no step of its own.
void Explorer::unlock(unsigned place) { world_.set_owner(place, kNobody); }

bool Explorer::try_lock(unsigned place, int owner) {
  reach(place, true, "tries");
  const int before = world_.owner(place);
  const bool free = before == kNobody || before == owner;
  observe(place, 6 + static_cast<u64>(free));
  if (free) world_.set_owner(place, owner);
  return free;
}

void Explorer::release(unsigned place, int owner) {
  // Unlike the writer byte, a liveness byte is asked for by others.
  if (place != kWriterPlace) {
    reach(place, true, "releases");
    truth_.before_release_of_slot(place - kAlivePlace);
  }
  if (world_.owner(place) == owner) world_.set_owner(place, kNobody);
}

void Explorer::wait_for_mail(unsigned giver) {
  const unsigned place = kMailPlace + giver;
  if (!in_setup_ && Fiber::inside() && world_.touch(acting(), place, false)) {
    current_->waits_on = place;
    current_->waits_for_mail = true;
    current_->at = "reads";
    current_->at_place = place;
    Fiber::pause();
    current_->waits_on = kPlaces;
    current_->waits_for_mail = false;
  }
  observe(place, world_.get(place));
}

}  // namespace interleave
