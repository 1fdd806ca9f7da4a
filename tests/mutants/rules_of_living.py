# ruff: noqa: E501 - lines of the core stand here as they are.
"""Death, joining and leaving, and the bytes that tell of them."""

from mutant import DIRECTORY, LIVENESS, MEMBERSHIP, RECLAIM, WORD, Mutant

MUTANTS = [
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
    Mutant(
        "a dead reader's bit stays",
        (
            (
                WORD,
                "word.holders &= ~dead;\n  return released(word, deallocate);",
                "return released(word, deallocate);",
            ),
        ),
        ("test_entry_word",),
    ),
    Mutant(
        "reclaim takes the bits of the living",
        (
            (
                WORD,
                "word.holders &= ~dead;\n  return released(word, deallocate);",
                "word.holders = 0;\n  return released(word, deallocate);",
            ),
        ),
        ("test_entry_word",),
    ),
    Mutant(
        "a dead owner's entries stay",
        (
            (
                RECLAIM,
                "if (!owner_dead && !d_.void_for_ever(f)) return false;",
                "if (!d_.void_for_ever(f)) return false;",
            ),
        ),
        ("test_participant",),
    ),
    Mutant(
        "a join reclaims nobody",
        (
            (
                MEMBERSHIP,
                "    reclaim.run();\n    const unsigned slot = take_slot(reclaim);",
                "    const unsigned slot = take_slot(reclaim);",
            ),
        ),
        ("test_participant",),
    ),
    Mutant(
        "a leaver leaves what it was writing",
        ((MEMBERSHIP, "        directory_.abort({i, w.generation});\n", ""),),
        ("a producer leaves",),
    ),
    Mutant(
        "a participant names a second arena",
        ((MEMBERSHIP, "    arena_named_ = true;\n", ""),),
        ("test_participant",),
    ),
    Mutant(
        "an incarnation is used twice",
        (
            (
                MEMBERSHIP,
                "directory_.add(directory_.view().header->incarnations, 1);",
                "directory_.load(directory_.view().header->incarnations) + 1;",
            ),
        ),
        ("test_participant",),
    ),
    Mutant(
        "a wait for a byte that ends without it",
        ((LIVENESS, "    if (!backoff.wait()) throw_timeout(name);", "    if (!backoff.wait()) return;"),),
        ("test_participant",),
    ),
    Mutant(
        "a wait for a byte without an end",
        ((LIVENESS, "  if (now >= deadline_.at) return false;\n", ""),),
        ("test_participant",),
        patience_s=60,
    ),
]
