# ruff: noqa: E501 - lines of the core stand here as they are.
"""Look-ups, pins and the threads of one process."""

from mutant import DIRECTORY, HOLDS, INDEX, MEMBERSHIP, WORD, Mutant

MUTANTS = [
    Mutant(
        "share what nobody holds",
        ((DIRECTORY, "if (shared && w.holders == 0) return std::nullopt;", "(void)shared;"),),
        ("test_directory",),
    ),
    Mutant(
        "share only what can be found",
        (
            (
                DIRECTORY,
                "return shared ? makes_sense(found.fields) : readable(found.fields);",
                "return shared ? readable(found.fields) : readable(found.fields);",
            ),
        ),
        ("test_directory",),
    ),
    Mutant(
        "pin without looking again",
        (
            (
                DIRECTORY,
                "pinned.after, key, shared, found)) return true;",
                "pinned.after, key, shared, found) || pinned.done) return true;",
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
                "if (generation && w.generation != *generation) return std::nullopt;",
                "(void)generation;",
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
                "if (Word::unpack(bits).is(word.state, word.generation)) return true;",
                "if (bits != 1) return true;",
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
    Mutant(
        "pin sets no bit",
        ((WORD, "  word.holders |= bit;\n", ""),),
        ("pin a key",),
    ),
    Mutant(
        "pin without reading the digest again",
        (
            (
                DIRECTORY,
                "if (key != nullptr && !same(found.fields.digest, *key)) return false;",
                "if (key != nullptr && !same(*key, *key)) return false;",
            ),
        ),
        ("pin a key",),
    ),
    Mutant(
        "pin without reading the extent again",
        (
            (
                DIRECTORY,
                "return shared ? makes_sense(found.fields) : readable(found.fields);",
                "return shared || word.holders != 0;",
            ),
        ),
        ("test_directory",),
    ),
    Mutant(
        "an older epoch is read",
        ((DIRECTORY, "    if (f.epoch != epoch()) return false;\n", ""),),
        ("test_directory",),
    ),
    Mutant(
        "unpin leaves its bit",
        (
            (
                WORD,
                "word.holders &= ~bit;\n  return released(word, deallocate);",
                "return released(word, deallocate);",
            ),
        ),
        ("a whole life",),
    ),
    Mutant(
        "unpin takes the bits of all",
        (
            (
                WORD,
                "word.holders &= ~bit;\n  return released(word, deallocate);",
                "word.holders = 0;\n  return released(word, deallocate);",
            ),
        ),
        ("test_entry_word",),
    ),
    Mutant(
        "a look-up reads one bucket only",
        ((INDEX, "    for (u64 bucket : p.bucket) {", "    for (u64 bucket : {p.bucket[0]}) {"),),
        ("test_directory",),
    ),
]
