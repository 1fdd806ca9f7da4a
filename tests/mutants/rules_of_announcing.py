# ruff: noqa: E501 - lines of the core stand here as they are.
"""Announcements, their deadlines, and the release rule."""

from mutant import DIRECTORY, MEMBERSHIP, RECLAIM, RESERVE, WORD, Mutant

MUTANTS = [
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
    Mutant(
        "the flag is read once, before the word",
        (
            (
                DIRECTORY,
                "    u64 bits = load(slot.word);\n    for (;;) {\n      const Word before = Word::unpack(bits);\n      const bool deallocate = (load(slot.flags) & kFlagDeallocate) != 0;",
                "    const bool deallocate = (load(slot.flags) & kFlagDeallocate) != 0;\n    u64 bits = load(slot.word);\n    for (;;) {\n      const Word before = Word::unpack(bits);",
            ),
        ),
        ("test_swap",),
    ),
    Mutant(
        "announce while it is written",
        (
            (
                WORD,
                "  if (!word.is(State::kReady, generation)) return {};\n  word.announced = add",
                "  if (word.state == State::kFree || word.generation != generation) return {};\n  word.announced = add",
            ),
        ),
        ("test_entry_word",),
    ),
    Mutant(
        "announce without the writer byte",
        (
            (
                MEMBERSHIP,
                "    const Writing writing(*this, timeout);\n    return Reserve<Policy>(directory_).announce(key, n, ttl_ns);",
                "    return Reserve<Policy>(directory_).announce(key, n, ttl_ns);",
            ),
        ),
        ("two announce the same",),
    ),
    Mutant(
        "a counter that is full starts again",
        (
            (
                WORD,
                "return n >= kMaxAnnounced - announced ? kMaxAnnounced : announced + static_cast<std::uint32_t>(n);",
                "return (announced + static_cast<std::uint32_t>(n)) & kMaxAnnounced;",
            ),
        ),
        ("test_entry_word",),
    ),
    Mutant(
        "expire without the writer byte",
        (
            (
                MEMBERSHIP,
                "    const Writing writing(*this, timeout);\n    return Reclaim<Policy>(directory_).run();",
                "    return Reclaim<Policy>(directory_).run();",
            ),
        ),
        (
            "announce, expiry",
            "a slot changes",
        ),
    ),
    Mutant(
        "expire leaves what was announced",
        (
            (
                WORD,
                "  word.announced = 0;\n  return released(word, deallocate);",
                "  return released(word, deallocate);",
            ),
        ),
        ("announce against expiry",),
    ),
]
