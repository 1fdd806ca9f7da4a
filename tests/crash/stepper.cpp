// stepper [--stride N] [--jobs N] [OPERATION...]
//
// Runs each operation of the core in a child process and kills it after 0, 1, 2, ... instructions. What
// is left behind is then reclaimed by the others and looked at: nothing may be held by the dead, being
// written, or overlap; what the others hold must be untouched; and one must be able to go on.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "../cpp/fixture.h"
#include "tracee.h"

using namespace fixture;
using Handle = std::shared_ptr<Participant>;

namespace {

constexpr u64 kItems = 4;
constexpr u64 kArena = 4 * kAlignment;
// Keys: of the bystanders, of the operation, and of whoever comes later.
constexpr u64 kTheirs = 1;
constexpr u64 kOwn = 2;
constexpr u64 kShared = 3;
constexpr u64 kLater = 4;

// What is there beside the child: a producer with an announced entry, and a reader with a view of it.
struct Bystanders {
  TestSegment segment{kItems};
  Handle producer = segment.producer(kArena);
  Handle reader = segment.reader();
  Token theirs{};
  Token shared{};
  std::optional<Found> view;

  Bystanders() {
    theirs = *put(*producer, request(kTheirs, 100, 2)).token;
    view = reader->pin(key(kTheirs));
    // What the child works on. Announced three times; what of that is left ends at its deadline.
    shared = *put(*producer, request(kShared, 100, 3)).token;
  }
};

// Makes the shared entry's announcements due. Not from the start: whoever joins takes back what is overdue.
void pass_deadline(const Participant& any, const Bystanders& b) {
  const u64& deadline = any.segment().view().entries[b.shared.entry].deadline_ns;
  SystemPolicy().store(const_cast<u64&>(deadline), 1);
}

// What an operation prepares and does has to happen, or its deaths say nothing.
template <class Result>
Result must(Result result) {
  if (!result) std::abort();
  return result;
}

// The child's own objects, made after the fork.
struct Child {
  Handle self;
  Token token{};
  std::optional<Found> view;
};

struct Operation {
  const char* name;
  void (*prepare)(Child&, const Bystanders&);
  void (*run)(Child&, const Bystanders&);
};

void join_as_reader(Child& c, const Bystanders& b) { c.self = b.segment.reader(); }
void join_as_producer(Child& c, const Bystanders& b) { c.self = b.segment.producer(kAlignment); }
void reserve_own(Child& c, const Bystanders& b) {
  join_as_producer(c, b);
  c.token = *c.self->reserve(request(kOwn, 100, 1, true, 0), kPatience).token;
}

const Operation kOperations[] = {
    {"join", [](Child& c, const Bystanders& b) { c.self = b.segment.handle(); },
     [](Child& c, const Bystanders&) { c.self->join("child", 7, kPatience); }},
    {"set_arena", join_as_reader,
     [](Child& c, const Bystanders&) {
       ArenaRecord record;
       record.nbytes = kAlignment;
       c.self->set_arena(record, kPatience);
     }},
    {"reserve", join_as_producer,
     [](Child& c, const Bystanders&) {
       must(c.self->reserve(request(kOwn, 100, 1, true, 0), kPatience).outcome == Outcome::kReserved);
     }},
    {"publish", reserve_own, [](Child& c, const Bystanders&) { must(c.self->publish(c.token, 1)); }},
    {"abort", reserve_own, [](Child& c, const Bystanders&) { must(c.self->abort(c.token)); }},
    {"announce", join_as_producer,
     [](Child& c, const Bystanders&) { must(c.self->announce(key(kShared), 2, 0, kPatience).token); }},
    {"pin", join_as_reader, [](Child& c, const Bystanders&) { c.view = must(c.self->pin(key(kTheirs))); }},
    {"unpin",
     [](Child& c, const Bystanders& b) {
       join_as_reader(c, b);
       c.view = must(c.self->pin(key(kShared)));
       must(c.self->settle(c.view->token, 3));
     },
     [](Child& c, const Bystanders&) { c.self->unpin(c.view->token); }},
    {"settle", join_as_reader, [](Child& c, const Bystanders& b) { must(c.self->settle(b.shared, 3)); }},
    {"expire",
     [](Child& c, const Bystanders& b) {
       join_as_reader(c, b);
       pass_deadline(*c.self, b);
     },
     [](Child& c, const Bystanders&) { must(c.self->maintain(kPatience).expired); }},
    {"evict",
     [](Child& c, const Bystanders& b) {
       join_as_producer(c, b);
       must(put(*c.self, request(kOwn, 100, 0, false)).outcome == Outcome::kReserved);
     },
     [](Child& c, const Bystanders&) {
       must(c.self->reserve(request(kOwn + 10, 100, 1, true, 0), kPatience).outcome == Outcome::kReserved);
       must(!c.self->find(key(kOwn)));
     }},
    // Somebody has died before, with a view and with an entry half written.
    {"reclaim",
     [](Child& c, const Bystanders& b) {
       join_as_reader(c, b);
       const Handle dead = b.segment.producer(kAlignment);
       must(dead->pin(key(kTheirs)));
       must(dead->reserve(request(kOwn, 100, 1, true, 0), kPatience).outcome == Outcome::kReserved);
     },
     [](Child& c, const Bystanders&) { must(c.self->maintain(kPatience).reclaimed >= 2); }},
    {"forget_arena",
     [](Child& c, const Bystanders& b) {
       join_as_reader(c, b);
       const Handle dead = b.segment.producer(kAlignment);
       must(put(*dead, request(kOwn, 100, 1, true, 0)).outcome == Outcome::kReserved);
     },
     [](Child& c, const Bystanders&) {
       must(c.self->forget_arena(
           *[&] {
             for (unsigned slot = 0; slot < kMaxParticipants; ++slot) {
               const auto arena = c.self->arena(slot);
               if (arena && !c.self->owner_alive(slot)) return std::optional(arena->ref);
             }
             return std::optional<ArenaRef>();
           }(),
           kPatience));
     }},
    {"leave",
     [](Child& c, const Bystanders& b) {
       reserve_own(c, b);
       c.view = must(c.self->pin(key(kTheirs)));
       c.self->unpin(c.view->token);
     },
     [](Child& c, const Bystanders&) { must(c.self->leave(kPatience)); }},
};

// What is wrong after the death, or nothing.
std::string examine(Bystanders& b) {
  Participant& watcher = *b.reader;
  if (watcher.find(key(kShared))) pass_deadline(watcher, b);
  // As every participant does by timer: what the dead held, then their arenas, then what lay in them.
  watcher.maintain(kPatience);
  for (unsigned slot = 0; slot < kMaxParticipants; ++slot) {
    const auto arena = watcher.arena(slot);
    if (arena && !watcher.owner_alive(slot)) watcher.forget_arena(arena->ref, kPatience);
  }
  watcher.maintain(kPatience);

  if (watcher.participants().size() != 2) return "a dead participant is remembered";
  std::vector<Found> entries;
  for (u64 i = 0; i < watcher.segment().view().geometry.entry_count; ++i) {
    if (const auto found = watcher.snapshot(i)) entries.push_back(*found);
  }
  if (entries.size() != 1) return std::to_string(entries.size()) + " entries are left where one is due";
  const Found& theirs = entries[0];
  if (theirs.token.entry != b.theirs.entry || theirs.fields.digest != key(kTheirs))
    return "another entry is left";
  if (theirs.word.state != State::kReady) return "their entry is not READY";
  if (theirs.word.announced != 2) return "an announcement of theirs is gone, or there is one more";
  if (theirs.word.holders != holder_bit(static_cast<unsigned>(b.reader->slot())))
    return "the holds are wrong";
  if (theirs.fields.offset != b.view->fields.offset) return "their entry has moved";

  // Whoever comes now can do everything, with the keys that the dead one had, too.
  const Handle next = b.segment.producer(kArena);
  for (const u64 number : {kOwn, kShared, kLater}) {
    const Placement placed = put(*next, request(number, 100, 1));
    if (placed.outcome != Outcome::kReserved) return "key " + std::to_string(number) + " cannot be put";
  }
  if (next->reserve(request(99, 100, 1), kPatience).outcome != Outcome::kDirectoryFull) {
    return "the directory miscounts its entries";
  }
  for (const u64 number : {kOwn, kShared, kLater}) {
    const auto view = b.reader->pin(key(number));
    if (!view) return "key " + std::to_string(number) + " cannot be read";
    b.reader->settle(view->token, 1);
    b.reader->unpin(view->token);
  }
  if (!next->leave(kPatience)) return "the next one cannot leave";
  b.reader->settle(b.theirs, 2);
  b.reader->unpin(b.view->token);
  for (u64 i = 0; i < watcher.segment().view().geometry.entry_count; ++i) {
    if (watcher.snapshot(i)) return "an entry is left at the end";
  }
  return {};
}

struct Outcomes {
  u64 points = 0;
  std::string wrong;
};

// Kills after `first`, `first + stride`, ... instructions.
Outcomes step_through(const Operation& operation, std::size_t first, std::size_t stride) {
  Outcomes outcomes;
  const auto program = [&](const Bystanders& b) {
    auto child = std::make_shared<Child>();
    return crash::Program{[=, &b] { operation.prepare(*child, b); }, [=, &b] { operation.run(*child, b); }};
  };
  const Bystanders model;
  const crash::Trace known = crash::trace(program(model));
  for (std::size_t count = first; count <= known.size(); count += stride) {
    Bystanders b;
    crash::kill_after(program(b), count, known);
    ++outcomes.points;
    if (std::string wrong = examine(b); !wrong.empty()) {
      outcomes.wrong = std::string(operation.name) + " killed after " + std::to_string(count) + " of " +
                       std::to_string(known.size()) + " instructions: " + wrong;
      break;
    }
  }
  return outcomes;
}

// Each worker is a process, because a tracer is one.
Outcomes in_workers(const Operation& operation, std::size_t stride, std::size_t jobs) {
  std::vector<int> results;
  for (std::size_t worker = 0; worker < jobs; ++worker) {
    int ends[2];
    if (::pipe(ends) != 0) std::abort();
    if (::fork() == 0) {
      const Outcomes mine = step_through(operation, worker * stride, jobs * stride);
      const std::string text = std::to_string(mine.points) + "\n" + mine.wrong;
      const bool written = ::write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
      ::_exit(written ? 0 : 1);
    }
    ::close(ends[1]);
    results.push_back(ends[0]);
  }
  Outcomes all;
  for (const int result : results) {
    char text[1024] = {};
    std::size_t length = 0;
    for (ssize_t n = 1; n > 0 && length + 1 < sizeof text; length += static_cast<std::size_t>(n)) {
      n = ::read(result, text + length, sizeof text - 1 - length);
      if (n < 0) std::abort();
    }
    ::close(result);
    int status = 0;
    ::wait(&status);
    char* rest = text;
    all.points += std::strtoull(text, &rest, 10);
    if (rest == text || *rest != '\n') {
      all.wrong = std::string(operation.name) + ": a worker ended with status " + std::to_string(status);
    } else if (rest[1] != 0) {
      all.wrong = rest + 1;
    }
  }
  return all;
}

}  // namespace

int main(int count, char** arguments) {
  std::size_t stride = 1;
  auto jobs = static_cast<std::size_t>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
  std::vector<std::string_view> names;
  for (int i = 1; i < count; ++i) {
    const std::string_view argument = arguments[i];
    if ((argument == "--stride" || argument == "--jobs") && i + 1 < count) {
      (argument == "--stride" ? stride : jobs) =
          static_cast<std::size_t>(std::max(1, std::atoi(arguments[++i])));
    } else {
      names.push_back(argument);
    }
  }
  u64 total = 0;
  std::string summary;
  for (const Operation& operation : kOperations) {
    if (!names.empty() && std::find(names.begin(), names.end(), operation.name) == names.end()) continue;
    const Outcomes outcomes = in_workers(operation, stride, jobs);
    std::printf("%-12s killed at %llu points\n", operation.name,
                static_cast<unsigned long long>(outcomes.points));
    std::fflush(stdout);
    if (!outcomes.wrong.empty()) {
      std::printf("FAILED: %s\n", outcomes.wrong.c_str());
      return 1;
    }
    total += outcomes.points;
    summary +=
        std::string(summary.empty() ? "" : ", ") + operation.name + " " + std::to_string(outcomes.points);
  }
  std::printf("points killed: %s; %llu in all\n", summary.c_str(), static_cast<unsigned long long>(total));
  return total > 0 ? 0 : 1;
}
