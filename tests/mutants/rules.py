# ruff: noqa: E501 - lines of the core stand here as they are.
"""The mutants: each leaves out one rule of DESIGN.md, "The entry word", or of its neighbours."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    name: str
    # (file, text that is there once, what stands there instead)
    changes: tuple[tuple[str, str, str], ...]
    # Scenarios of the explorer, or C++ tests, that are expected to fail: they run first.
    noticed_by: tuple[str, ...]

    @property
    def slug(self) -> str:
        return "".join(c if c.isalnum() else "_" for c in self.name)


WORD = "entry_word.h"
RESERVE = "reserve.h"
DIRECTORY = "directory.h"
HOLDS = "holds.h"
RECLAIM = "reclaim.h"
MEMBERSHIP = "membership.h"

MUTANTS = [
    # The release rule.
    Mutant(
        "publish without the release rule",
        (
            (
                WORD,
                "return released({State::kReady, generation, add(word.announced, n), 0}, deallocate);",
                "return Word{State::kReady, generation, add(word.announced, n), 0};",
            ),
        ),
        ("settle while",),
    ),
    Mutant(
        "reclaim without the release rule",
        (
            (
                WORD,
                "word.holders &= ~dead;\n  return released(word, deallocate);",
                "word.holders &= ~dead;\n  return word;",
            ),
        ),
        ("a whole life",),
    ),
    Mutant(
        "unpin without the release rule",
        (
            (
                WORD,
                "word.holders &= ~bit;\n  return released(word, deallocate);",
                "word.holders &= ~bit;\n  return word;",
            ),
        ),
        ("a whole life",),
    ),
    Mutant(
        "settle without the release rule",
        (
            (
                WORD,
                "word.announced = take(word.announced, n);\n  return released(word, deallocate);",
                "word.announced = take(word.announced, n);\n  return word;",
            ),
        ),
        ("a token of an earlier",),
    ),
    Mutant(
        "expire without the release rule",
        (
            (
                WORD,
                "word.announced = 0;\n  return released(word, deallocate);",
                "word.announced = 0;\n  return word;",
            ),
        ),
        ("announce against expiry",),
    ),
    Mutant(
        "the release rule without the flag",
        ((WORD, "word.announced == 0 && deallocate ?", "word.announced == 0 ?"),),
        ("test_directory",),
    ),
    # Announcements.
    Mutant(
        "announce on another generation",
        (
            (
                WORD,
                "  if (!word.is(State::kReady, generation)) return {};\n  word.announced = add",
                "  if (word.state != State::kReady) return {};\n  word.announced = add",
            ),
        ),
        ("test_entry_word",),
    ),
    Mutant(
        "announce and reserve without comparing the digest",
        (
            (
                RESERVE,
                "if (!found || found->fields.digest != key || !d_.readable(found->fields)) return false;",
                "if (!found || !d_.readable(found->fields)) return false;",
            ),
        ),
        ("two keys",),
    ),
    Mutant(
        "announce before its deadline is pushed",
        (
            (
                RESERVE,
                "    d_.store(deadline, std::max(d_.load(deadline), later(ttl_ns)));\n",
                "",
            ),
            (
                RESERVE,
                "    // The last reader may have freed it since it was found.\n",
                "    d_.store(deadline, std::max(d_.load(deadline), later(ttl_ns)));\n",
            ),
        ),
        ("announce, expiry",),
    ),
    Mutant(
        "an announcement never pushes its deadline",
        ((RESERVE, "    d_.store(deadline, std::max(d_.load(deadline), later(ttl_ns)));\n", ""),),
        ("announce, expiry",),
    ),
    Mutant(
        "expire by a deadline that was read before the word",
        (
            (
                RECLAIM,
                "  bool expire(u64 i) {\n",
                "  bool expire(u64 i) {\n"
                "    const bool overdue = d_.load(d_.entry(i).deadline_ns) <= d_.policy().now_ns();\n",
            ),
            (
                RECLAIM,
                "if (!next || d_.load(d_.entry(i).deadline_ns) > d_.policy().now_ns()) return {};",
                "if (!next || !overdue) return {};",
            ),
        ),
        ("announce against expiry",),
    ),
    Mutant(
        "expire whatever the deadline",
        (
            (
                RECLAIM,
                "if (!next || d_.load(d_.entry(i).deadline_ns) > d_.policy().now_ns()) return {};",
                "if (!next) return {};",
            ),
        ),
        ("announce against expiry", "announce, expiry"),
    ),
    Mutant(
        "expire despite holds",
        (
            (
                WORD,
                "if (!word.idle() || word.announced == 0) return {};",
                "if (word.state != State::kReady || word.announced == 0) return {};",
            ),
        ),
        ("expiry under",),
    ),
    Mutant(
        "settle on another generation",
        (
            (
                WORD,
                "if (word.state == State::kFree || word.generation != generation) return {};",
                "if (word.state == State::kFree) return {};",
            ),
        ),
        ("a token of an earlier",),
    ),
    Mutant(
        "settle below zero",
        (
            (
                WORD,
                "return n >= announced ? 0 : announced - static_cast<std::uint32_t>(n);",
                "return (announced - static_cast<std::uint32_t>(n)) & kMaxAnnounced;",
            ),
        ),
        ("test_entry_word",),
    ),
    Mutant(
        "a full counter moves again",
        ((WORD, "  if (announced == kMaxAnnounced) return announced;\n", ""),),
        ("a full counter",),
    ),
    # Reserve.
    Mutant(
        "the deadline after the swap",
        (
            (RESERVE, "    d_.store(e.deadline_ns, later(request.ttl_ns));\n", ""),
            (
                RESERVE,
                "    return {Outcome::kReserved, Token{i, swapped.after.generation}, position.offset};",
                "    d_.store(e.deadline_ns, later(request.ttl_ns));\n"
                "    return {Outcome::kReserved, Token{i, swapped.after.generation}, position.offset};",
            ),
        ),
        ("settle while",),
    ),
    Mutant(
        "fields after the swap",
        (
            (
                RESERVE,
                "    for (unsigned w = 0; w < request.digest.size(); ++w) d_.store(e.digest[w], request.digest[w]);\n",
                "",
            ),
            (
                RESERVE,
                "    return {Outcome::kReserved, Token{i, swapped.after.generation}, position.offset};",
                "    for (unsigned w = 0; w < 4; ++w) d_.store(e.digest[w], request.digest[w]);\n"
                "    return {Outcome::kReserved, Token{i, swapped.after.generation}, position.offset};",
            ),
        ),
        ("settle while",),
    ),
    Mutant(
        "the tag after the swap",
        (
            (RESERVE, "    d_.index().set_tag(i, probe.tag);\n", ""),
            (
                RESERVE,
                "    return {Outcome::kReserved, Token{i, swapped.after.generation}, position.offset};",
                "    d_.index().set_tag(i, probe.tag);\n"
                "    return {Outcome::kReserved, Token{i, swapped.after.generation}, position.offset};",
            ),
        ),
        ("settle while",),
    ),
    Mutant(
        "reserve keeps the generation",
        ((WORD, "(word.generation + 1) % kGenerations", "word.generation"),),
        ("a token of an earlier",),
    ),
    Mutant(
        "a dead writer is waited for",
        (
            (
                RESERVE,
                "} else if (writer >= 0 && d_.alive(static_cast<unsigned>(writer))) {",
                "} else if (writer >= 0) {",
            ),
        ),
        ("a dead writer",),
    ),
    Mutant(
        "the ledger forgets what was reserved",
        (
            (
                RESERVE,
                "      ledger_->add({position.offset, position.offset + align_up(request.nbytes), i});\n",
                "",
            ),
        ),
        ("two threads of one process put",),
    ),
    Mutant(
        "a key that is being written is reserved again",
        (
            (
                RESERVE,
                "if (auto there = existing(request.digest, request.announced, request.ttl_ns)) return *there;",
                "",
            ),
        ),
        ("two producers",),
    ),
    Mutant(
        "evict what is announced",
        (
            (WORD, "if (!word.idle() || word.announced != 0) return {};", "if (!word.idle()) return {};"),
            (
                RESERVE,
                "if (w.idle() && w.announced == 0) survey.evictable.push_back(i);",
                "if (w.idle()) survey.evictable.push_back(i);",
            ),
        ),
        ("eviction against an",),
    ),
    Mutant(
        "evict what is held",
        (
            (
                WORD,
                "if (!word.idle() || word.announced != 0) return {};",
                "if (word.state != State::kReady || word.announced != 0) return {};",
            ),
        ),
        ("eviction against a reader",),
    ),
    # Readers.
    Mutant(
        "pin without looking again",
        (
            (
                DIRECTORY,
                "if ((key == nullptr || found.fields.digest == *key) && readable(found.fields)) return found;",
                "if (pinned.done) return found;",
            ),
        ),
        ("pin a key",),
    ),
    Mutant(
        "pin what is being written",
        (
            (
                WORD,
                "constexpr Next pin(Word word, std::uint64_t bit) {\n  if (word.state != State::kReady) return {};",
                "constexpr Next pin(Word word, std::uint64_t bit) {\n  if (word.state == State::kFree) return {};",
            ),
        ),
        ("pin a key",),
    ),
    Mutant(
        "pin by a token of another generation",
        (
            (
                DIRECTORY,
                "return generation && w.generation != *generation ? std::nullopt : step::pin(w, bit);",
                "return step::pin(w, bit);",
            ),
        ),
        ("a token of an earlier",),
    ),
    Mutant(
        "unpin on another generation",
        (
            (
                WORD,
                "if (!word.is(State::kReady, generation) || (word.holders & bit) == 0) return {};",
                "if (word.state != State::kReady || (word.holders & bit) == 0) return {};",
            ),
        ),
        ("test_entry_word",),
    ),
    Mutant(
        "find without looking again",
        (
            (
                DIRECTORY,
                "if (Word::unpack(bits).is(word.state, word.generation)) return found;",
                "if (bits != 1) return found;",
            ),
        ),
        ("find a",),
    ),
    Mutant(
        "an arena is known by its slot only",
        (
            (
                DIRECTORY,
                "    if (load(record.incarnation) != arena.incarnation) return std::nullopt;\n    const u64 nbytes",
                "    if (load(record.incarnation) == 0) return std::nullopt;\n    const u64 nbytes",
            ),
            (
                DIRECTORY,
                "    // before and after says that nbytes belongs to it.\n"
                "    if (load(record.incarnation) != arena.incarnation) return std::nullopt;",
                "    // before and after says that nbytes belongs to it.\n"
                "    if (load(record.incarnation) == 0) return std::nullopt;",
            ),
        ),
        ("a slot with a dead",),
    ),
    # Threads of one process.
    Mutant(
        "local counts without the mutex",
        (
            (
                HOLDS,
                "  std::optional<Found> pin(const Digest& key) {\n    const std::lock_guard guard(mutex_);\n",
                "  std::optional<Found> pin(const Digest& key) {\n",
            ),
            (
                HOLDS,
                "  bool unpin(Token token) {\n    const std::lock_guard guard(mutex_);\n",
                "  bool unpin(Token token) {\n",
            ),
        ),
        ("two threads of one process read",),
    ),
    Mutant(
        "the writer byte without the process mutex",
        ((MEMBERSHIP, '      membership.policy_.lock(membership.writer_mutex_, deadline, "writer");\n', ""),),
        ("two threads of one process put",),
    ),
    Mutant(
        "reserve without the writer byte",
        (
            (
                MEMBERSHIP,
                '        membership.policy_.acquire(lock_byte::kWriter, deadline, "writer");\n',
                "",
            ),
        ),
        ("two producers",),
    ),
    Mutant(
        "two threads end the same participant",
        (
            (
                HOLDS,
                "if (!closed_ || total_ != 0 || ended_) return false;",
                "if (!closed_ || total_ != 0) return false;",
            ),
        ),
        ("one thread leaves twice",),
    ),
    # Death, joining and leaving.
    Mutant(
        "liveness is asked for before the writer byte is taken",
        (
            (
                RECLAIM,
                "  Maintained run() {\n",
                "  Maintained run() { return run(dead_slots()); }\n  Maintained run(const u64 dead) {\n",
            ),
            (RECLAIM, "    const u64 dead = dead_slots();\n    Maintained done;", "    Maintained done;"),
            (
                MEMBERSHIP,
                "    const Writing writing(*this, timeout);\n    return Reclaim<Policy>(directory_).run();",
                "    const u64 dead = Reclaim<Policy>(directory_).dead_slots();\n"
                "    const Writing writing(*this, timeout);\n    return Reclaim<Policy>(directory_).run(dead);",
            ),
        ),
        ("a slot changes",),
    ),
    Mutant(
        "one's own liveness is asked of one's own descriptor",
        (
            (
                DIRECTORY,
                "return static_cast<int>(slot) == this->slot() || policy_.alive(slot);",
                "return policy_.alive(slot);",
            ),
        ),
        ("two clean",),
    ),
    Mutant(
        "a joiner does not clean its slot",
        ((MEMBERSHIP, "      reclaim.clean_slot(slot);\n", ""),),
        ("a reader dies while",),
    ),
    Mutant(
        "leave with a live view",
        ((MEMBERSHIP, "    if (!holds_.close()) return false;\n", "    holds_.close();\n"),),
        ("one thread leaves while",),
    ),
    Mutant(
        "the record is cleared after the liveness byte is given up",
        (
            (
                MEMBERSHIP,
                "    directory_.store(directory_.view().participants[slot].incarnation, 0);\n    incarnation_.store(0);\n",
                "    incarnation_.store(0);\n",
            ),
            (
                MEMBERSHIP,
                "    // Our own view of it last: a join()",
                "    directory_.store(directory_.view().participants[slot].incarnation, 0);\n"
                "    // Our own view of it last: a join()",
            ),
        ),
        ("the last view",),
    ),
    Mutant(
        "what is void is freed under a view",
        (
            (
                WORD,
                "if (!word.idle() && !(word.damaged() && word.holders == 0)) return {};",
                "if (word.state == State::kFree || word.state == State::kWriting) return {};",
            ),
            (
                RECLAIM,
                "    if (!word.idle()) return false;\n",
                "    if (word.state != State::kReady) return false;\n",
            ),
        ),
        ("a producer leaves",),
    ),
    Mutant(
        "a dead writer's entry stays",
        (
            (
                WORD,
                "  if (word.state == State::kWriting) return freed(word);\n",
                "  if (word.state == State::kWriting) return {};\n",
            ),
        ),
        ("settle while",),
    ),
]
