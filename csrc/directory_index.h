// Where an entry with a given digest can be: two buckets of 16, told by the digest alone.
//
// An entry never moves and never lies outside its two buckets, so a look-up that has read both has
// missed nothing that was there. Each entry has a 32-bit tag in a parallel array, one cache line a
// bucket; a look-up reads two lines and then, nearly always, only the entry it wants.
#pragma once

#include <bit>

#include "layout.h"

namespace ec_ipc {

struct Probe {
  u64 bucket[2];
  std::uint32_t tag;  // never 0, which says "never used"
};

inline Probe probe(const Digest& digest, u64 bucket_count) {
  // Digests should be uniform already; short test keys padded with zeroes are not.
  u64 h = digest[0] * 0x9e3779b97f4a7c15ULL ^ std::rotl(digest[1] * 0xc2b2ae3d27d4eb4fULL, 17) ^
          std::rotl(digest[2] * 0x165667b19e3779f9ULL, 31) ^ std::rotl(digest[3] * 0xd6e8feb86659fd93ULL, 47);
  h = (h ^ h >> 32) * 0xd6e8feb86659fd93ULL;
  h = (h ^ h >> 29) * 0xbf58476d1ce4e5b9ULL;
  h ^= h >> 32;
  const u64 g = (h ^ 0x94d049bb133111ebULL) * 0x9e3779b97f4a7c15ULL;
  Probe p{};
  p.bucket[0] = h & (bucket_count - 1);
  p.bucket[1] = g >> 40 & (bucket_count - 1);
  if (p.bucket[1] == p.bucket[0]) p.bucket[1] ^= 1;
  p.tag = static_cast<std::uint32_t>(h >> 32);
  if (p.tag == 0) p.tag = 1;
  return p;
}

template <class Policy>
class DirectoryIndex {
 public:
  DirectoryIndex(Policy& policy, const SegmentView& view)
      : policy_(policy), tags_(view.tags), bucket_count_(view.geometry.entry_count / kBucketEntries) {}

  Probe locate(const Digest& digest) const { return probe(digest, bucket_count_); }

  // Calls visit(entry) for each entry with this tag until it returns true.
  // SYNC POINT (DirectoryIndex::set_tag): tags are read before words, and stored before them.
  template <class Visit>
  bool visit_tagged(const Probe& p, Visit&& visit) const {
    // Both tags of a word are compared at once: a half of `differs` that is zero borrows.
    constexpr u64 kOnes = 0x0000000100000001ULL;
    constexpr u64 kTops = 0x8000000080000000ULL;
    const u64 wanted = p.tag * kOnes;
    for (u64 bucket : p.bucket) {
      const u64 first = bucket * kBucketEntries;
      for (unsigned pair = 0; pair < kBucketEntries / 2; ++pair) {
        const u64 differs = policy_.load(tags_[first / 2 + pair]) ^ wanted;
        if (((differs - kOnes) & ~differs & kTops) == 0) continue;
        if (static_cast<std::uint32_t>(differs) == 0 && visit(first + 2 * pair)) return true;
        if (differs >> 32 == 0 && visit(first + 2 * pair + 1)) return true;
      }
    }
    return false;
  }

  template <class Visit>
  void visit_bucket(u64 bucket, Visit&& visit) const {
    for (unsigned i = 0; i < kBucketEntries; ++i) visit(bucket * kBucketEntries + i);
  }

  // Under the writer byte, so the other half of the word cannot change in between.
  void set_tag(u64 entry, std::uint32_t tag) {
    const unsigned shift = entry % 2 == 0 ? 0 : 32;
    u64& pair = tags_[entry / 2];
    const u64 others = policy_.load(pair) & ~(0xffffffffULL << shift);
    // SYNC POINT (visit_tagged): the tag is stored before the word leaves FREE, so whoever could
    // see the entry READY also sees its tag.
    policy_.store(pair, others | static_cast<u64>(tag) << shift);
  }

 private:
  Policy& policy_;
  u64* tags_;
  u64 bucket_count_;
};

}  // namespace ec_ipc
