// Reserve and announce: the steps that need a place, under the writer byte.
#pragma once

#include <algorithm>
#include <string>

#include "directory.h"
#include "errors.h"
#include "extents.h"
#include "ledger.h"
#include "reclaim.h"

namespace ec_ipc {

enum class Outcome {
  kReserved,
  kAnnounced,
  kWritingHere,
  kWritingElsewhere,
  kAbsent,
  kArenaFull,
  kDirectoryFull,
  kTooLarge,
  kSaturated,
};

struct Placement {
  Outcome outcome;
  std::optional<Token> token;
  u64 offset = 0;
};

struct Request {
  Digest digest{};
  u64 nbytes = 0;
  u64 dtype = 0;
  u64 rank = 0;
  std::array<u64, kMaxRank> shape{};
  u64 announced = 0;
  u64 ttl_ns = 0;
  bool deallocate = false;
};

// An arena and its size, as its owner knows them.
struct OwnArena {
  ArenaRef ref;
  u64 nbytes;
};

template <class Policy>
class Reserve {
 public:
  // The ledger belongs to the participant; without one every reservation looks at every entry.
  explicit Reserve(Directory<Policy>& directory, Ledger* ledger = nullptr)
      : d_(directory), reclaim_(directory), ledger_(ledger) {}

  Placement announce(const Digest& key, u64 n, u64 ttl_ns) {
    return existing(key, n, ttl_ns).value_or(Placement{Outcome::kAbsent, {}});
  }

  Placement reserve(const Request& request, const OwnArena& arena) {
    if (auto there = existing(request.digest, request.announced, request.ttl_ns)) return *there;
    const u64 extent = align_up(request.nbytes);
    if (request.nbytes > arena.nbytes || extent > arena.nbytes) return {Outcome::kTooLarge, {}};
    const Probe probe = d_.index().locate(request.digest);

    if (const auto offset = quick_fit(extent, arena)) {
      if (const auto entry = longest_free(probe)) return take(*entry, probe, request, {arena.ref, *offset});
    }
    Survey survey = look(arena);
    if (!place(survey, probe, extent, arena)) {
      reclaim_.run();
      survey = look(arena);
      if (const auto full = make_room(survey, probe, extent, arena)) return {*full, {}};
    }
    const auto offset = first_fit(survey.used, arena.nbytes, extent);
    if (ledger_ != nullptr) *ledger_ = {arena.ref, survey.live, reserve_sequence(), std::move(survey.used)};
    // Looked for again, because make_room() may have freed it.
    const auto entry = longest_free(probe);
    if (!entry || !offset) throw_written_by_something_else("an entry of the key's buckets");
    return take(*entry, probe, request, {arena.ref, *offset});
  }

 private:
  struct Candidate {
    u64 entry;
    u64 last_used;
  };
  struct Survey {
    u64 live = 0;
    std::vector<Extent> used;    // of this arena, sorted
    std::vector<u64> evictable;  // entries of this arena that nobody needs
  };
  struct Position {
    ArenaRef arena;
    u64 offset;
  };

  // What there is under this key that a reader could still get, or nothing.
  std::optional<Placement> existing(const Digest& key, u64 n, u64 ttl_ns) {
    std::optional<Placement> result;
    d_.index().visit_tagged(d_.index().locate(key), [&](u64 i) {
      const std::optional<Found> found = d_.snapshot(i);
      if (!found || found->fields.digest != key || !d_.readable(found->fields)) return false;
      if (found->word.state == State::kWriting) {
        const int writer = found->word.writer();
        if (writer == d_.slot()) {
          result = Placement{Outcome::kWritingHere, found->token};
        } else if (writer >= 0 && d_.alive(static_cast<unsigned>(writer))) {
          result = Placement{Outcome::kWritingElsewhere, found->token};
        } else {
          d_.count(kReclaimed, reclaim_.clear_bits(i, found->word.holders));
        }
      } else if (d_.alive(found->fields.arena.slot)) {
        // In the arena of a dead owner an announcement would be moot at the next reclaim.
        result = announce_on(*found, n, ttl_ns);
      }
      return result.has_value();
    });
    return result;
  }

  std::optional<Placement> announce_on(const Found& found, u64 n, u64 ttl_ns) {
    if (n == 0) return Placement{Outcome::kAnnounced, found.token};
    u64& deadline = d_.entry(found.token.entry).deadline_ns;
    // SYNC POINT (Reclaim::expire): the deadline moves before the word, see there. Both sides hold
    // the writer byte; the order makes a writer that is killed between the two harmless as well.
    d_.store(deadline, std::max(d_.load(deadline), later(ttl_ns)));
    const auto swapped = d_.swap(found.token.entry,
                                 [&](Word w, bool) { return step::announce(w, found.token.generation, n); });
    // The last reader may have freed it since it was found.
    if (!swapped.done) return std::nullopt;
    const bool full = swapped.after.announced == kMaxAnnounced;
    return Placement{full ? Outcome::kSaturated : Outcome::kAnnounced, found.token};
  }

  u64 later(u64 ttl_ns) const {
    const u64 now = d_.policy().now_ns();
    return ttl_ns > ~u64{0} - now ? ~u64{0} : now + ttl_ns;
  }

  // One pass over all words. Entries that are not FREE keep their fields under the writer byte.
  Survey look(const OwnArena& arena) const {
    Survey survey;
    survey.used.reserve(d_.view().geometry.max_items);
    for (u64 i = 0; i < d_.entry_count(); ++i) {
      const Word w = d_.word(i);
      if (w.state == State::kFree) continue;
      ++survey.live;
      const EntrySlot& e = d_.entry(i);
      if (d_.load(e.arena) != arena.ref.pack()) continue;
      const u64 begin = std::min(d_.load(e.offset), arena.nbytes);
      const u64 length = std::min(d_.load(e.nbytes), arena.nbytes);
      survey.used.push_back({begin, std::min(begin + align_up(length), arena.nbytes), i});
      if (w.idle() && w.announced == 0) survey.evictable.push_back(i);
    }
    sort_extents(survey.used);
    return survey;
  }

  u64 reserve_sequence() const { return d_.load(d_.view().header->reserve_sequence); }

  // An offset, when the ledger is enough to say that there is one. Under the writer byte nobody else
  // reserves, so an extent that is free here stays so.
  std::optional<u64> quick_fit(u64 extent, const OwnArena& arena) {
    if (ledger_ == nullptr || ledger_->arena != arena.ref) return std::nullopt;
    if (ledger_->live_at_most(reserve_sequence()) >= d_.view().geometry.max_items) return std::nullopt;
    std::erase_if(ledger_->used, [&](const Extent& e) {
      const EntrySlot& slot = d_.entry(e.entry);
      return d_.word(e.entry).state == State::kFree || d_.load(slot.arena) != arena.ref.pack() ||
             d_.load(slot.offset) != e.begin;
    });
    return first_fit(ledger_->used, arena.nbytes, extent);
  }

  std::vector<Candidate> least_recently_used(const Survey& survey) const {
    std::vector<Candidate> order;
    for (u64 i : survey.evictable) order.push_back({i, d_.load(d_.entry(i).last_used_ns)});
    std::sort(order.begin(), order.end(),
              [](const Candidate& a, const Candidate& b) { return a.last_used < b.last_used; });
    return order;
  }

  // What would be in use if all were evicted that can be.
  static std::vector<Extent> needed(const Survey& survey) {
    // Both lists come out of one pass over the entries, so this one is sorted by entry.
    std::vector<Extent> rest;
    for (const Extent& e : survey.used) {
      if (!std::binary_search(survey.evictable.begin(), survey.evictable.end(), e.entry)) rest.push_back(e);
    }
    return rest;
  }

  bool place(const Survey& survey, const Probe& probe, u64 extent, const OwnArena& arena) const {
    return survey.live < d_.view().geometry.max_items && longest_free(probe) &&
           first_fit(survey.used, arena.nbytes, extent);
  }

  // Evicts from the own arena until there is a place; says what is full when there cannot be one,
  // and then has evicted nothing that it could foresee to be in vain.
  std::optional<Outcome> make_room(Survey& survey, const Probe& probe, u64 extent, const OwnArena& arena) {
    const u64 max_items = d_.view().geometry.max_items;
    if (survey.live - survey.evictable.size() >= max_items) return Outcome::kDirectoryFull;
    if (!first_fit(needed(survey), arena.nbytes, extent)) return Outcome::kArenaFull;

    const std::vector<Candidate> order = least_recently_used(survey);
    if (!longest_free(probe)) {
      const auto near = [&](const Candidate& c) {
        const u64 bucket = c.entry / kBucketEntries;
        return bucket == probe.bucket[0] || bucket == probe.bucket[1];
      };
      for (const Candidate& c : order) {
        if (near(c) && evict(survey, c.entry)) break;
      }
      if (!longest_free(probe)) return Outcome::kDirectoryFull;
    }
    for (const Candidate& c : order) {
      if (place(survey, probe, extent, arena)) return std::nullopt;
      evict(survey, c.entry);
    }
    if (place(survey, probe, extent, arena)) return std::nullopt;
    return survey.live >= max_items ? Outcome::kDirectoryFull : Outcome::kArenaFull;
  }

  // A reader may pin it at this very moment: then it stays.
  bool evict(Survey& survey, u64 i) {
    if (!d_.swap(i, [](Word w, bool) { return step::evict(w); }).done) return false;
    std::erase_if(survey.used, [&](const Extent& e) { return e.entry == i; });
    --survey.live;
    d_.count(kEvicted);
    return true;
  }

  // The FREE entry that was reserved longest ago, so that a generation comes back as late as
  // possible. Only when one bucket is crowded does the emptier one win: two buckets that are both
  // full while the directory is half empty would be a refusal for nothing.
  std::optional<u64> longest_free(const Probe& probe) const {
    struct Choice {
      std::optional<u64> entry;
      u64 sequence = ~u64{0};
      unsigned free = 0;
    } choice[2];
    for (unsigned b = 0; b < 2; ++b) {
      Choice& c = choice[b];
      d_.index().visit_bucket(probe.bucket[b], [&](u64 i) {
        if (d_.word(i).state != State::kFree) return;
        ++c.free;
        const u64 sequence = d_.load(d_.entry(i).reserve_sequence);
        if (!c.entry || sequence < c.sequence) {
          c.entry = i;
          c.sequence = sequence;
        }
      });
    }
    constexpr unsigned kCrowded = kBucketEntries / 4;
    if (std::min(choice[0].free, choice[1].free) <= kCrowded) {
      return choice[choice[1].free > choice[0].free].entry;
    }
    return choice[choice[1].sequence < choice[0].sequence].entry;
  }

  Placement take(u64 i, const Probe& probe, const Request& request, const Position& position) {
    EntrySlot& e = d_.entry(i);
    // First, because it may fail: what is in the ledger and not in the directory does no harm.
    if (ledger_ != nullptr) {
      ledger_->add({position.offset, position.offset + align_up(request.nbytes), i});
    }
    const u64 now = d_.policy().now_ns();
    // SYNC POINT (Directory::snapshot, Directory::set_bit): all of it while the word is FREE. A
    // process that is killed anywhere in here leaves a FREE entry, which says nothing.
    for (unsigned w = 0; w < request.digest.size(); ++w) d_.store(e.digest[w], request.digest[w]);
    d_.store(e.arena, position.arena.pack());
    d_.store(e.offset, position.offset);
    d_.store(e.nbytes, request.nbytes);
    d_.store(e.deadline_ns, later(request.ttl_ns));
    d_.store(e.last_used_ns, now);
    d_.store(e.reserve_sequence, d_.add(d_.view().header->reserve_sequence, 1));
    d_.store(e.epoch, d_.epoch());
    d_.store(e.flags, request.deallocate ? kFlagDeallocate : 0);
    d_.store(e.dtype, request.dtype);
    d_.store(e.rank, request.rank);
    for (unsigned n = 0; n < kMaxRank; ++n) d_.store(e.shape[n], request.shape[n]);
    d_.index().set_tag(i, probe.tag);

    const u64 bit = d_.own_bit();
    const auto swapped = d_.swap(i, [&](Word w, bool) { return step::reserve(w, bit, request.announced); });
    if (!swapped.done) throw_written_by_something_else("entry " + std::to_string(i));
    return {Outcome::kReserved, Token{i, swapped.after.generation}, position.offset};
  }

  // Under the writer byte nobody else takes an entry that is FREE.
  [[noreturn]] static void throw_written_by_something_else(const std::string& what) {
    throw SegmentError(what +
                       " left FREE while this process held the writer byte: something else writes into "
                       "the segment; end its users, then `ec-ipc reset --namespace NAME`");
  }

  Directory<Policy>& d_;
  Reclaim<Policy> reclaim_;
  Ledger* ledger_;
};

}  // namespace ec_ipc
