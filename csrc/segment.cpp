#include "segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>

namespace ec_ipc {
namespace {

constexpr const char* kReset = "; end its users, then `ec-ipc reset --namespace NAME` makes a new one";

std::string number(u64 value) { return std::to_string(value); }

// What a name of shared memory leads to may be anything: nothing is used before it is compared.
void expect(const char* what, u64 found, u64 wanted) {
  if (found == wanted) return;
  throw SegmentError("the segment's " + std::string(what) + " is " + number(found) + ", but must be " +
                     number(wanted) + kReset);
}

Geometry checked_geometry(int fd) {
  const u64 size = file_size(fd);
  if (size < sizeof(Header)) {
    throw SegmentError("the segment has " + number(size) + " bytes, but its header alone has " +
                       number(sizeof(Header)) + kReset);
  }
  const Memory page(fd, sizeof(Header), false);
  // Copied once: from here on only the copy counts.
  const auto header = [&] {
    const auto* shared = static_cast<Header*>(page.data());
    // SYNC POINT (initialise_segment): the ready word is read first, written last.
    const u64 ready = std::atomic_ref<u64>(const_cast<u64&>(shared->ready)).load();
    Header copy{};
    std::memcpy(&copy, shared, sizeof copy);
    copy.ready = ready;
    return copy;
  }();
  if (header.magic != kMagic) {
    throw SegmentError("this is no ec_ipc segment: its magic is " + number(header.magic) +
                       "; use another namespace");
  }
  if (header.layout_version != kLayoutVersion) {
    throw SegmentError("the segment has layout version " + number(header.layout_version) +
                       ", this build has " + number(kLayoutVersion) +
                       "; install the same ec_ipc for every engine" + kReset);
  }
  expect("layout hash", header.layout_hash, layout_hash());
  if (header.ready != kReady) {
    throw SegmentError("the segment is not initialised: its ready word is " + number(header.ready) + kReset);
  }
  if (header.max_items < 1 || header.max_items > kMaxItems) {
    throw SegmentError("the segment's max_items is " + number(header.max_items) + ", but must be 1 to " +
                       number(kMaxItems) + kReset);
  }
  const Geometry geometry = Geometry::of(header.max_items);
  expect("total size in the header", header.total_bytes, geometry.total_bytes);
  expect("entry count", header.entry_count, geometry.entry_count);
  expect("number of participant slots", header.participant_slots, kMaxParticipants);
  expect("bucket size", header.bucket_entries, kBucketEntries);
  expect("participants offset", header.participants_offset, geometry.participants_offset);
  expect("arenas offset", header.arenas_offset, geometry.arenas_offset);
  expect("tags offset", header.tags_offset, geometry.tags_offset);
  expect("entries offset", header.entries_offset, geometry.entries_offset);
  if (size != header.total_bytes) {
    throw SegmentError("the segment has " + number(size) + " bytes, but its header says " +
                       number(header.total_bytes) + kReset);
  }
  return geometry;
}

}  // namespace

// Segments of one name that follow each other must not use the same incarnations: an arena's name and
// a pin's arena would otherwise mean one thing to who still has the old segment and another to the rest.
static u64 random_start() {
  std::uint32_t start = 0;
  if (::getrandom(&start, sizeof start, 0) != sizeof start) {
    throw SegmentError("the kernel gives no random number: " + std::string(std::strerror(errno)));
  }
  return (u64{start} & 0x7fffffff) << 8;
}

void OwnedFd::close() noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Memory::Memory(int fd, std::size_t nbytes, bool populate) : nbytes_(nbytes) {
  const int flags = MAP_SHARED | (populate ? MAP_POPULATE : 0);
  data_ = ::mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (data_ == MAP_FAILED) {
    throw SegmentError("mapping " + number(nbytes) +
                       " bytes of shared memory failed: " + std::generic_category().message(errno) +
                       "; check the memory limit and, in a container, --shm-size");
  }
}

Memory::~Memory() {
  if (data_ != nullptr) ::munmap(data_, nbytes_);
}

void Memory::keep_from_children() {
  if (::madvise(data_, nbytes_, MADV_DONTFORK) != 0) {
    throw SegmentError("keeping the segment's mapping from forked children failed: " +
                       std::generic_category().message(errno));
  }
}

u64 file_size(int fd) {
  struct stat status{};
  if (::fstat(fd, &status) != 0) {
    throw SegmentError("reading the size of shared memory (descriptor " + std::to_string(fd) +
                       ") failed: " + std::generic_category().message(errno));
  }
  return static_cast<u64>(status.st_size);
}

u64 segment_bytes(u64 max_items) {
  if (max_items < 1 || max_items > kMaxItems) {
    throw std::invalid_argument("max_items is " + number(max_items) + ", but must be 1 to " +
                                number(kMaxItems));
  }
  return Geometry::of(max_items).total_bytes;
}

bool segment_is_ready(int fd) {
  if (file_size(fd) < sizeof(Header)) return false;
  const Memory page(fd, sizeof(Header), false);
  return std::atomic_ref<u64>(static_cast<Header*>(page.data())->ready).load() == kReady;
}

void initialise_segment(int fd, u64 max_items, std::span<const std::byte> fingerprint,
                        const std::string& description) {
  const u64 wanted = segment_bytes(max_items);
  if (fingerprint.size() != kFingerprintBytes) {
    throw std::invalid_argument("the fingerprint has " + number(fingerprint.size()) +
                                " bytes, but must have " + number(kFingerprintBytes));
  }
  if (description.size() >= kDescriptionBytes) {
    throw std::invalid_argument("the description has " + number(description.size()) +
                                " bytes, but may have at most " + number(kDescriptionBytes - 1));
  }
  if (const u64 size = file_size(fd); size != wanted) {
    throw SegmentError("the segment has " + number(size) + " bytes, but " + number(max_items) +
                       " items need " + number(wanted) + kReset);
  }
  const Memory memory(fd, sizeof(Header), false);
  auto* header = static_cast<Header*>(memory.data());
  std::atomic_ref<u64> ready(header->ready);
  if (ready.load() == kReady) {
    throw SegmentError(std::string("the segment is initialised already: attach to it instead") + kReset);
  }
  // A creator may have died in here before: every field is written again. The rest of the file is
  // still zero, because nobody can join before the ready word is set.
  const Geometry geometry = Geometry::of(max_items);
  Header fresh{};
  fresh.magic = kMagic;
  fresh.incarnations = random_start();
  fresh.layout_version = kLayoutVersion;
  fresh.layout_hash = layout_hash();
  fresh.total_bytes = geometry.total_bytes;
  fresh.max_items = max_items;
  fresh.entry_count = geometry.entry_count;
  fresh.participant_slots = kMaxParticipants;
  fresh.bucket_entries = kBucketEntries;
  fresh.participants_offset = geometry.participants_offset;
  fresh.arenas_offset = geometry.arenas_offset;
  fresh.tags_offset = geometry.tags_offset;
  fresh.entries_offset = geometry.entries_offset;
  std::memcpy(fresh.fingerprint.data(), fingerprint.data(), kFingerprintBytes);
  std::memcpy(fresh.description.data(), description.data(), description.size());
  std::memcpy(header, &fresh, sizeof fresh);
  // SYNC POINT (checked_geometry): the ready word last, after everything it vouches for.
  ready.store(kReady);
}

Segment::Segment(int fd)
    : fd_(fd),
      geometry_(checked_geometry(fd)),
      memory_(fd, geometry_.total_bytes, false),
      view_(SegmentView::of(memory_.data(), geometry_)) {
  // Not inherited through exec: a child that lives on would keep our lock bytes.
  if (::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
    throw SegmentError("setting close-on-exec on the segment's descriptor failed: " +
                       std::generic_category().message(errno));
  }
  // A mapping counts as a use of the open file, like a descriptor: in a child that lives on it would
  // keep the lock bytes of a parent that has died.
  memory_.keep_from_children();
  fingerprint_ = view_.header->fingerprint;
  const auto* text = reinterpret_cast<const char*>(view_.header->description.data());
  description_.assign(text, ::strnlen(text, kDescriptionBytes));
}

}  // namespace ec_ipc
