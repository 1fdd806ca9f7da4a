# ruff: noqa: E501 - lines of the core stand here as they are.
"""Reserve, publish, abort and evict."""

from mutant import RESERVE, WORD, Mutant

MUTANTS = [
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
    Mutant(
        "reserve an entry that is in use",
        (
            (
                WORD,
                "  if (word.state != State::kFree) return {};\n  return Word{State::kWriting, (word.generation + 1) % kGenerations, add(0, n), bit};",
                "  return Word{State::kWriting, (word.generation + 1) % kGenerations, add(0, n), bit};",
            ),
        ),
        ("test_entry_word",),
    ),
    Mutant(
        "reserve without the own bit",
        ((WORD, "add(0, n), bit};", "add(0, n), 0};"),),
        ("test_entry_word",),
    ),
    Mutant(
        "reserve announces nothing",
        ((WORD, "add(0, n), bit};", "0, bit};"),),
        ("test_entry_word",),
    ),
    Mutant(
        "the entry that was reserved last comes first",
        ((RESERVE, "if (!c.entry || sequence < c.sequence) {", "if (!c.entry || sequence > c.sequence) {"),),
        ("test_directory",),
    ),
    Mutant(
        "what is being written covers no bytes",
        (
            (
                RESERVE,
                "      if (w.state == State::kFree) continue;\n      ++survey.live;",
                "      if (w.state != State::kReady) continue;\n      ++survey.live;",
            ),
        ),
        ("test_directory",),
    ),
    Mutant(
        "evict from the arena of another",
        ((RESERVE, "      if (d_.load(e.arena) != arena.ref.pack()) continue;\n", ""),),
        ("test_directory",),
    ),
    Mutant(
        "evict the most recently used",
        ((RESERVE, "return a.last_used < b.last_used; });", "return a.last_used > b.last_used; });"),),
        ("test_directory",),
    ),
    Mutant(
        "a failed reserve reclaims nobody",
        ((RESERVE, "      reclaim_.run();\n      survey = look(arena);", "      survey = look(arena);"),),
        ("test_participant",),
    ),
    Mutant(
        "publish what another is writing",
        (
            (
                WORD,
                "if (!word.is(State::kWriting, generation) || word.holders != bit) return {};\n  return released(",
                "if (!word.is(State::kWriting, generation)) return {};\n  return released(",
            ),
        ),
        ("test_entry_word",),
    ),
    Mutant(
        "publish another generation",
        (
            (
                WORD,
                "if (!word.is(State::kWriting, generation) || word.holders != bit) return {};\n  return released(",
                "if (word.state != State::kWriting || word.holders != bit) return {};\n  return released(",
            ),
        ),
        ("test_entry_word",),
    ),
    Mutant(
        "publish keeps the own bit",
        (
            (
                WORD,
                "return released({State::kReady, generation, add(word.announced, n), 0}, deallocate);",
                "return released({State::kReady, generation, add(word.announced, n), bit}, deallocate);",
            ),
        ),
        ("test_entry_word",),
    ),
    Mutant(
        "publish without the announcements of meanwhile",
        (
            (
                WORD,
                "return released({State::kReady, generation, add(word.announced, n), 0}, deallocate);",
                "return released({State::kReady, generation, word.announced, 0}, deallocate);",
            ),
        ),
        ("test_entry_word",),
    ),
    Mutant(
        "publish without the announcements of before",
        (
            (
                WORD,
                "return released({State::kReady, generation, add(word.announced, n), 0}, deallocate);",
                "return released({State::kReady, generation, add(0, n), 0}, deallocate);",
            ),
        ),
        ("test_entry_word",),
    ),
    Mutant(
        "abort what another is writing",
        (
            (
                WORD,
                "if (!word.is(State::kWriting, generation) || word.holders != bit) return {};\n  return freed(",
                "if (!word.is(State::kWriting, generation)) return {};\n  return freed(",
            ),
        ),
        ("test_entry_word",),
    ),
    Mutant(
        "abort another generation",
        (
            (
                WORD,
                "if (!word.is(State::kWriting, generation) || word.holders != bit) return {};\n  return freed(",
                "if (word.state != State::kWriting || word.holders != bit) return {};\n  return freed(",
            ),
        ),
        ("test_entry_word",),
    ),
    Mutant(
        "abort leaves it being written",
        (
            (
                WORD,
                "if (!word.is(State::kWriting, generation) || word.holders != bit) return {};\n  return freed(word);",
                "if (!word.is(State::kWriting, generation) || word.holders != bit) return {};\n  return word;",
            ),
        ),
        ("test_entry_word",),
    ),
]
