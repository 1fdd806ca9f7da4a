// The bytes of a directory segment: header | participants | arenas | tags | entries.
//
// Plain old data, all of it 64-bit words, so that each shared access is one atomic word. A build
// with another layout has another version or hash and is refused at attach.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "errors.h"

namespace ec_ipc {

using u64 = std::uint64_t;

inline constexpr u64 kMagic = 0x3143504943450001ULL;
inline constexpr u64 kLayoutVersion = 1;
inline constexpr u64 kReady = 0x5941445952434545ULL;

inline constexpr unsigned kMaxParticipants = 36;  // one bit each in an entry's word
inline constexpr unsigned kMaxRank = 8;
inline constexpr unsigned kBucketEntries = 16;  // their tags fill one cache line
inline constexpr u64 kMaxItems = 1ULL << 20;
inline constexpr u64 kAlignment = 256;  // what CUDA gives its own allocations

inline constexpr std::size_t kDigestBytes = 32;
inline constexpr std::size_t kFingerprintBytes = 32;
inline constexpr std::size_t kDescriptionBytes = 1024;
inline constexpr std::size_t kRoleBytes = 16;
inline constexpr std::size_t kDeviceBytes = 16;
inline constexpr std::size_t kHandleBytes = 64;

// The order is part of the layout: append only.
enum Counter : unsigned {
  kPublished,
  kRepublished,
  kReads,
  kBytesPublished,
  kFreedByLastReader,
  kEvicted,
  kExpired,
  kReclaimed,
  kLocalised,
  kPublishSkipped,
  kLateReleases,
  kMisses,
  kCounterCount,
};
inline constexpr std::array<const char*, kCounterCount> kCounterNames = {
    "published", "republished", "reads",     "bytes_published", "freed_by_last_reader", "evicted",
    "expired",   "reclaimed",   "localised", "publish_skipped", "late_releases",        "misses"};

// Fixed-size text or bytes, as words.
template <std::size_t Bytes>
using Words = std::array<u64, Bytes / 8>;

using Digest = Words<kDigestBytes>;

struct alignas(64) CounterBlock {
  u64 value[16];
};

struct alignas(64) Header {
  // Magic and version stay the first two words in every version to come.
  u64 magic;
  u64 layout_version;
  u64 layout_hash;
  u64 total_bytes;
  u64 max_items;
  u64 entry_count;
  u64 participant_slots;
  u64 bucket_entries;
  u64 participants_offset;
  u64 arenas_offset;
  u64 tags_offset;
  u64 entries_offset;
  Words<kFingerprintBytes> fingerprint;
  Words<kDescriptionBytes> description;
  // Written under the writer byte only.
  alignas(64) u64 incarnations;
  u64 reserve_sequence;
  // Read by every pin, hence on a line that is hardly ever written.
  alignas(64) u64 epoch;
  alignas(64) u64 pressure;
  CounterBlock visitors;  // counts made by handles that have not joined
  alignas(64) u64 ready;  // written last
};

struct alignas(64) ParticipantSlot {
  u64 incarnation;  // 0: nobody. Written last by join, cleared by leave and reclaim
  u64 pid;          // for people, never a proof of life
  u64 engine;
  Words<kRoleBytes> role;
  alignas(64) u64 mapped[40];  // by arena slot: the incarnation this participant has mapped
  CounterBlock counters;       // kept when the slot changes hands: a sum over all slots stays true
};

struct alignas(64) ArenaSlot {
  u64 incarnation;  // 0: no arena. Written last
  u64 nbytes;
  u64 kind;
  u64 canary;
  Words<kDeviceBytes> device;
  Words<kHandleBytes> handle;
};

struct alignas(64) EntrySlot {
  // First line: what a pin reads.
  u64 word;
  Digest digest;
  u64 arena;  // slot and incarnation, see ArenaRef
  u64 offset;
  u64 nbytes;
  // Second line.
  u64 deadline_ns;
  u64 last_used_ns;
  u64 reserve_sequence;
  u64 epoch;
  u64 flags;
  u64 dtype;
  u64 rank;
  u64 spare;
  // Third line.
  u64 shape[kMaxRank];
};

inline constexpr u64 kFlagDeallocate = 1;

static_assert(sizeof(CounterBlock) == 128 && kCounterCount <= 16);
static_assert(sizeof(Header) == 1536);
static_assert(offsetof(Header, magic) == 0 && offsetof(Header, layout_version) == 8);
static_assert(sizeof(ParticipantSlot) == 512);
static_assert(sizeof(ArenaSlot) == 128);
static_assert(sizeof(EntrySlot) == 192);
static_assert(offsetof(EntrySlot, deadline_ns) == 64 && offsetof(EntrySlot, shape) == 128);

struct ArenaRef {
  unsigned slot;
  u64 incarnation;
  constexpr u64 pack() const { return incarnation << 8 | slot; }
  static constexpr ArenaRef unpack(u64 packed) { return {static_cast<unsigned>(packed & 0xff), packed >> 8}; }
  constexpr bool operator==(const ArenaRef&) const = default;
};

constexpr u64 layout_hash() {
  const u64 shape[] = {sizeof(Header),
                       sizeof(ParticipantSlot),
                       sizeof(ArenaSlot),
                       sizeof(EntrySlot),
                       offsetof(Header, fingerprint),
                       offsetof(Header, description),
                       offsetof(Header, incarnations),
                       offsetof(Header, reserve_sequence),
                       offsetof(Header, epoch),
                       offsetof(Header, pressure),
                       offsetof(Header, visitors),
                       offsetof(Header, ready),
                       offsetof(ParticipantSlot, role),
                       offsetof(ParticipantSlot, mapped),
                       offsetof(ParticipantSlot, counters),
                       offsetof(ArenaSlot, device),
                       offsetof(ArenaSlot, handle),
                       offsetof(EntrySlot, digest),
                       offsetof(EntrySlot, arena),
                       offsetof(EntrySlot, reserve_sequence),
                       offsetof(EntrySlot, flags),
                       offsetof(EntrySlot, shape),
                       kMaxParticipants,
                       kMaxRank,
                       kBucketEntries,
                       kAlignment,
                       kCounterCount};
  u64 hash = 0xcbf29ce484222325ULL;
  for (u64 number : shape) {
    for (int byte = 0; byte < 8; ++byte) {
      hash = (hash ^ (number >> (8 * byte) & 0xff)) * 0x100000001b3ULL;
    }
  }
  return hash;
}

// Where things are. Computed from max_items alone, compared with the header once at attach, and
// from then on a private copy: a header that changes later can mislead nobody.
struct Geometry {
  u64 max_items;
  u64 entry_count;
  u64 participants_offset;
  u64 arenas_offset;
  u64 tags_offset;
  u64 entries_offset;
  u64 total_bytes;

  static constexpr Geometry of(u64 max_items) {
    Geometry g{};
    g.max_items = max_items;
    // Half of the entries stay free: two buckets of 16 are then practically never both full.
    g.entry_count = 2 * kBucketEntries;
    while (g.entry_count < 2 * max_items) g.entry_count *= 2;
    g.participants_offset = sizeof(Header);
    g.arenas_offset = g.participants_offset + kMaxParticipants * sizeof(ParticipantSlot);
    g.tags_offset = g.arenas_offset + kMaxParticipants * sizeof(ArenaSlot);
    g.entries_offset = g.tags_offset + g.entry_count * sizeof(std::uint32_t);
    g.total_bytes = g.entries_offset + g.entry_count * sizeof(EntrySlot);
    return g;
  }
};
static_assert(Geometry::of(4096).tags_offset % 64 == 0 && Geometry::of(1).entries_offset % 64 == 0);

// Typed pointers into one mapping.
struct SegmentView {
  Geometry geometry{};
  Header* header = nullptr;
  ParticipantSlot* participants = nullptr;
  ArenaSlot* arenas = nullptr;
  u64* tags = nullptr;  // two 32-bit tags a word
  EntrySlot* entries = nullptr;

  static SegmentView of(void* base, const Geometry& geometry) {
    auto* bytes = static_cast<std::byte*>(base);
    return {geometry,
            reinterpret_cast<Header*>(bytes),
            reinterpret_cast<ParticipantSlot*>(bytes + geometry.participants_offset),
            reinterpret_cast<ArenaSlot*>(bytes + geometry.arenas_offset),
            reinterpret_cast<u64*>(bytes + geometry.tags_offset),
            reinterpret_cast<EntrySlot*>(bytes + geometry.entries_offset)};
  }
};

constexpr u64 align_up(u64 nbytes) { return (nbytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace ec_ipc
