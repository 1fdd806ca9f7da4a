#include "aim.h"

namespace fuzz {

u64 aimed_word(const ec_ipc::Geometry& g, Random& random) {
  const auto within = [&](u64 begin, u64 end) { return (begin + random() % (end - begin)) / 8; };
  constexpr u64 kNumbersOfHeader = offsetof(ec_ipc::Header, fingerprint);
  switch (random() % 6) {
    case 0:
      return within(0, kNumbersOfHeader);
    case 1:
      return within(0, g.participants_offset);
    case 2:
      return within(g.participants_offset, g.arenas_offset);
    case 3:
      // Tests have few arenas, in the first slots.
      return within(g.arenas_offset, g.arenas_offset + 3 * sizeof(ec_ipc::ArenaSlot));
    case 4:
      return within(g.tags_offset, g.entries_offset);
    default:
      return within(g.entries_offset, g.total_bytes);
  }
}

u64 aimed_value(u64 before, Random& random) {
  switch (random() % 8) {
    case 0:
      return 0;
    case 1:
      return ~u64{0};
    case 2:
      return before ^ u64{1} << random() % 64;
    case 3:
      return u64{1} << random() % 64;
    case 4:
      return before + random() % 512 - 256;
    case 5:
      return random() % 4096;
    case 6:
      // A word with some state, generation, announcements and holders.
      return random() % 4 << 62 | (random() & 0x3ffc000000000003ULL);
    default:
      return random();
  }
}

}  // namespace fuzz
