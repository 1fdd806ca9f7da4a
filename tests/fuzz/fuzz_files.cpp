// fuzz_files [CORRUPTIONS [SEED]]
//
// Segment files that are damaged before anybody attaches: words, bytes and blocks, cut off anywhere or too
// long. A number of the header that is another one, or another size, must be refused, and the file left
// as it is; with any other damage one can attach, and everything must go on within bounds.
#include <cstring>

#include "aim.h"
#include "exercise.h"
#include "run_of.h"

using namespace fuzz;

namespace {

using Bytes = std::vector<std::byte>;

constexpr u64 kItems = 8;
constexpr u64 kArena = 8 * kAlignment;
constexpr u64 kMostTooLong = 70'000;

Bytes contents(int fd) {
  Bytes bytes(file_size(fd));
  if (::pread(fd, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) std::abort();
  return bytes;
}

// A file without a name; its descriptor.
int file_with(const Bytes& bytes) {
  const int fd = ::memfd_create("ec_ipc_fuzz", MFD_CLOEXEC);
  if (fd < 0 || ::pwrite(fd, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    std::abort();
  return fd;
}

// What processes leave behind that were killed in the middle of everything.
Bytes segment_after_a_life() {
  const TestSegment segment(kItems);
  const auto producer = segment.producer(kArena);
  const auto reader = segment.reader();
  put(*producer, request(1, 100, 2));
  put(*producer, request(2, 300, 1, false));
  producer->reserve(request(3, 50, 1), kPatience);
  reader->pin(key(1));
  return contents(segment.fd());
}

void overwrite_block(Bytes& bytes, Random& random) {
  const u64 begin = random() % bytes.size();
  const u64 length = 1 + random() % std::min<u64>(200, bytes.size() - begin);
  const auto place = bytes.begin() + static_cast<std::ptrdiff_t>(begin);
  const u64 what = random() % 3;
  const u64 from = random() % (bytes.size() - length + 1);
  for (u64 i = 0; i < length; ++i) {
    const std::byte copied = bytes[from + i];
    place[static_cast<std::ptrdiff_t>(i)] = what == 0   ? std::byte{0}
                                            : what == 1 ? static_cast<std::byte>(random())
                                                        : copied;
  }
}

void resize(Bytes& bytes, Random& random) {
  const Geometry g = Geometry::of(kItems);
  const u64 borders[] = {0,
                         8,
                         sizeof(Header),
                         g.participants_offset + sizeof(ParticipantSlot),
                         g.arenas_offset,
                         g.tags_offset,
                         g.entries_offset,
                         g.total_bytes};
  u64 size = 0;
  switch (random() % 3) {
    case 0:
      size = random() % g.total_bytes;
      break;
    case 1:
      size = borders[random() % std::size(borders)] + random() % 3;
      size -= std::min<u64>(size, 1);
      break;
    default:
      size = g.total_bytes + random() % kMostTooLong;
  }
  bytes.resize(size);
}

void damage(Bytes& bytes, Random& random) {
  const u64 kind = random() % 16;
  if (bytes.size() < Geometry::of(kItems).total_bytes || kind == 0) return resize(bytes, random);
  if (kind < 10) {
    const u64 word = aimed_word(Geometry::of(kItems), random);
    u64 value = 0;
    std::memcpy(&value, bytes.data() + 8 * word, 8);
    value = aimed_value(value, random);
    std::memcpy(bytes.data() + 8 * word, &value, 8);
  } else if (kind < 13) {
    bytes[random() % bytes.size()] = static_cast<std::byte>(random());
  } else {
    overwrite_block(bytes, random);
  }
}

bool must_be_refused(Bytes damaged, const Bytes& whole) {
  if (damaged.size() != whole.size()) return true;
  // The one number that may be another one: as many items as the same entries can serve.
  auto* header = reinterpret_cast<Header*>(damaged.data());
  if (header->max_items - 1 < kMaxItems && Geometry::of(header->max_items).total_bytes == whole.size()) {
    header->max_items = kItems;
  }
  const auto differs = [&](std::size_t begin, std::size_t length) {
    return std::memcmp(damaged.data() + begin, whole.data() + begin, length) != 0;
  };
  return differs(0, offsetof(Header, fingerprint)) || differs(offsetof(Header, ready), sizeof(Header::ready));
}

void exercise(Participant& late, u64 choice) {
  Bytes arena(kArena);
  (void)late.segment().description();
  exercise_reader(late, choice, arena);
  unless_refused([&] {
    late.join("late", 3, kShort);
    ArenaRecord record;
    record.nbytes = kArena;
    late.set_arena(record, kShort);
  });
  exercise_reader(late, choice, arena);
  exercise_producer(late, choice, arena);
  unless_refused([&] { late.leave(kShort); });
}

}  // namespace

int main(int count, char** arguments) {
  const RunOf run = run_of(count, arguments, 20'000);
  const Bytes whole = segment_after_a_life();
  u64 damages = 0;
  u64 refused = 0;
  u64 attached = 0;
  for (u64 input = 0; damages < run.corruptions; ++input) {
    Random random(run.seed + input);
    Bytes bytes = whole;
    for (u64 left = 1 + random() % 6; left > 0; --left, ++damages) damage(bytes, random);

    const OwnedFd file(file_with(bytes));
    unless_refused([&] { (void)segment_is_ready(file.get()); });
    std::unique_ptr<Participant> late;
    const bool accepted = unless_refused([&] { late = std::make_unique<Participant>(::dup(file.get())); });
    if (accepted == must_be_refused(bytes, whole)) {
      return fail(accepted ? "a damaged header was accepted" : "a whole header was refused");
    }
    ++(accepted ? attached : refused);
    if (accepted) {
      exercise(*late, random());
    } else if (contents(file.get()) != bytes) {
      return fail("what was refused was changed");
    }
  }
  std::printf("files refused: %llu, attached to: %llu\n", static_cast<unsigned long long>(refused),
              static_cast<unsigned long long>(attached));
  if (refused == 0 || attached == 0) return fail("all files were alike");
  return tried(damages);
}
