#include "participant.h"

#include <unistd.h>

#include <stdexcept>

#include "fork_guard.h"

namespace ec_ipc {

Words<kRoleBytes> pack_role(const std::string& role) {
  if (role.size() > kRoleBytes) {
    throw std::invalid_argument("the role has " + std::to_string(role.size()) +
                                " bytes, but may have at most " + std::to_string(kRoleBytes));
  }
  Words<kRoleBytes> words{};
  std::memcpy(words.data(), role.data(), role.size());
  return words;
}

std::string unpack_role(const Words<kRoleBytes>& role) {
  const auto* text = reinterpret_cast<const char*>(role.data());
  return {text, ::strnlen(text, kRoleBytes)};
}

Participant::Participant(int fd) : segment_(fd), directory_(policy_, segment_.view()), holds_(directory_) {
  policy_.fd = segment_.fd();
  fork_guard::enlist(this);
}

Participant::~Participant() { fork_guard::dismiss(this); }

void Participant::orphan() noexcept {
  forked_.store(true);
  segment_.abandon();
}

void Participant::check_not_forked() const {
  if (forked_.load()) {
    throw ForkedHandle(
        "this segment handle came through fork() and belongs to the parent; open the namespace again in "
        "the child");
  }
}

void Participant::check_joined() const {
  check_not_forked();
  if (slot() < 0) throw SegmentError("this handle is no participant of the segment; call join() first");
}

int Participant::fd() const {
  check_not_forked();
  return segment_.fd();
}

u64 Participant::holds() {
  check_not_forked();
  return holds_.total();
}

Participant::Writing::Writing(Participant& participant, std::chrono::nanoseconds timeout)
    : participant_(participant) {
  participant.check_not_forked();
  const Deadline deadline = Deadline::after(timeout);
  // The byte does not exclude threads of this process, the mutex does. Polled like the byte:
  // ThreadSanitizer does not know the timed mutex of this C library.
  Backoff backoff(deadline);
  while (!participant.writer_mutex_.try_lock()) {
    if (!backoff.wait()) lock_byte::throw_timeout("writer");
  }
  try {
    lock_byte::lock(participant.segment_.fd(), lock_byte::kWriter, deadline, "writer");
  } catch (...) {
    participant.writer_mutex_.unlock();
    throw;
  }
}

Participant::Writing::~Writing() {
  // SYNC POINT (Writing::Writing, in any process): every store made under the byte comes before
  // this call, and the kernel orders it before the next owner's return from lock().
  lock_byte::unlock(participant_.segment_.fd(), lock_byte::kWriter);
  participant_.writer_mutex_.unlock();
}

unsigned Participant::join(const std::string& role, u64 engine, std::chrono::nanoseconds timeout) {
  const Words<kRoleBytes> packed = pack_role(role);
  const Writing writing(*this, timeout);
  if (slot() >= 0) throw SegmentError("this handle is a participant already; open another one");
  Reclaim<SystemPolicy> reclaim(directory_);
  reclaim.run();
  const unsigned slot = take_slot(reclaim);

  ParticipantSlot& record = segment_.view().participants[slot];
  directory_.store(record.incarnation, 0);
  directory_.store(record.pid, static_cast<u64>(::getpid()));
  directory_.store(record.engine, engine);
  for (unsigned w = 0; w < packed.size(); ++w) directory_.store(record.role[w], packed[w]);
  for (u64& mapped : record.mapped) directory_.store(mapped, 0);
  const u64 incarnation = directory_.add(segment_.view().header->incarnations, 1);
  // SYNC POINT (Participant::participants): the incarnation last, over a record that is whole.
  directory_.store(record.incarnation, incarnation);
  incarnation_.store(incarnation);
  own_arena_ = {};
  arena_named_ = false;
  directory_.set_slot(static_cast<int>(slot));
  holds_.open();
  return slot;
}

unsigned Participant::take_slot(Reclaim<SystemPolicy>& reclaim) {
  unsigned remembered = 0;
  for (unsigned slot = 0; slot < kMaxParticipants; ++slot) {
    // A dead owner's arena may still have a name that somebody has to unlink (dead_arenas).
    if (directory_.load(segment_.view().arenas[slot].incarnation) != 0) {
      ++remembered;
      continue;
    }
    // SYNC POINT (Participant::finish_leaving, Reclaim::run): taken under the writer byte. Whoever
    // reclaims holds it too, and so never finds the slot between dead and alive; whoever left gave
    // the byte back last, with nothing of theirs behind it.
    if (!lock_byte::try_lock(segment_.fd(), lock_byte::kLiveness + slot)) continue;
    reclaim.clean_slot(slot);
    return slot;
  }
  throw NoFreeSlot("all " + std::to_string(kMaxParticipants) + " participant slots are taken, " +
                   std::to_string(remembered) +
                   " of them by arenas; end an engine, or free dead ones with `ec-ipc reap`");
}

bool Participant::leave(std::chrono::nanoseconds timeout) {
  const Writing writing(*this, timeout);
  if (slot() < 0) return true;
  for (u64 i = 0; i < directory_.entry_count(); ++i) {
    const Word w = directory_.word(i);
    if (w.state == State::kWriting && w.holders == directory_.own_bit()) directory_.abort({i, w.generation});
  }
  forget_own_arena();
  // From here the thread that drops the last hold ends it; close() tells who that is.
  if (!holds_.close()) return false;
  finish_leaving();
  return true;
}

void Participant::forget_own_arena() {
  if (own_arena_.nbytes == 0) return;
  directory_.store(segment_.view().arenas[own_arena_.ref.slot].incarnation, 0);
  own_arena_ = {};
  Reclaim<SystemPolicy>(directory_).discard_all_void();
}

void Participant::finish_leaving() noexcept {
  const auto slot = static_cast<unsigned>(directory_.slot());
  directory_.store(segment_.view().participants[slot].incarnation, 0);
  incarnation_.store(0);
  // SYNC POINT (Participant::take_slot): the byte after the last bit and the record, for from here
  // on the slot may be somebody else's.
  lock_byte::unlock(segment_.fd(), lock_byte::kLiveness + slot);
  // Our own view of it last: a join() of this handle must not lock the byte that we then unlock.
  directory_.set_slot(-1);
}

bool Participant::anyone_else() const {
  check_not_forked();
  return lock_byte::held_by_another(segment_.fd(), lock_byte::kLiveness, kMaxParticipants);
}

std::optional<Found> Participant::find(const Digest& key) const {
  check_not_forked();
  return directory_.find(key);
}

std::optional<Found> Participant::snapshot(u64 entry) const {
  check_not_forked();
  return directory_.contains(entry) ? directory_.snapshot(entry) : std::nullopt;
}

Placement Participant::reserve(const Request& request, std::chrono::nanoseconds timeout) {
  if (request.nbytes == 0) throw std::invalid_argument("nbytes is 0, but must be at least 1");
  if (!shape_product(request.shape, request.rank, request.nbytes)) {
    throw std::invalid_argument("the shape has more elements than the " + std::to_string(request.nbytes) +
                                " bytes of the item");
  }
  const Writing writing(*this, timeout);
  check_joined();
  if (holds_.closed()) throw SegmentError("this participant is leaving; open the namespace again");
  if (own_arena_.nbytes == 0) throw SegmentError("this participant has no arena; call set_arena() first");
  return Reserve<SystemPolicy>(directory_).reserve(request, own_arena_);
}

Placement Participant::announce(const Digest& key, u64 n, u64 ttl_ns, std::chrono::nanoseconds timeout) {
  const Writing writing(*this, timeout);
  return Reserve<SystemPolicy>(directory_).announce(key, n, ttl_ns);
}

bool Participant::publish(Token token, u64 announced) {
  check_not_forked();
  return directory_.publish(token, announced);
}

bool Participant::abort(Token token) {
  check_not_forked();
  return directory_.abort(token);
}

bool Participant::settle(Token token, u64 n) {
  check_not_forked();
  return directory_.settle(token, n);
}

bool Participant::settle(const Digest& key, u64 n) {
  check_not_forked();
  const std::optional<Found> found = directory_.find(key);
  return found && directory_.settle(found->token, n);
}

std::optional<Found> Participant::pin(const Digest& key) {
  check_joined();
  return holds_.pin(key);
}

std::optional<Found> Participant::pin(Token token) {
  check_joined();
  return holds_.pin(token);
}

void Participant::unpin(Token token) noexcept {
  if (forked_.load()) return;
  if (holds_.unpin(token)) finish_leaving();
}

Maintained Participant::maintain(std::chrono::nanoseconds timeout) {
  const Writing writing(*this, timeout);
  return Reclaim<SystemPolicy>(directory_).run();
}

void Participant::count(Counter counter, u64 n) {
  check_not_forked();
  directory_.count(counter, n);
}

u64 Participant::pressure() const {
  check_not_forked();
  return directory_.load(segment_.view().header->pressure);
}

void Participant::set_pressure(u64 value) {
  check_not_forked();
  directory_.store(segment_.view().header->pressure, value);
}

u64 Participant::epoch() const {
  check_not_forked();
  return directory_.epoch();
}

u64 Participant::bump_epoch() {
  check_not_forked();
  return directory_.add(segment_.view().header->epoch, 1);
}

}  // namespace ec_ipc
