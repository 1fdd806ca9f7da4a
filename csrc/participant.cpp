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

Participant::Participant(int fd)
    : segment_(fd), membership_(policy_, segment_.view()), directory_(membership_.directory()) {
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
  membership_.check_joined();
}

int Participant::fd() const {
  check_not_forked();
  return segment_.fd();
}

u64 Participant::holds() {
  check_not_forked();
  return membership_.holds().total();
}

unsigned Participant::join(const std::string& role, u64 engine, std::chrono::nanoseconds timeout) {
  check_not_forked();
  return membership_.join({static_cast<u64>(::getpid()), engine, pack_role(role)}, timeout);
}

bool Participant::leave(std::chrono::nanoseconds timeout) {
  check_not_forked();
  return membership_.leave(timeout);
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
  check_not_forked();
  return membership_.reserve(request, timeout);
}

Placement Participant::announce(const Digest& key, u64 n, u64 ttl_ns, std::chrono::nanoseconds timeout) {
  check_not_forked();
  return membership_.announce(key, n, ttl_ns, timeout);
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
  return membership_.holds().pin(key);
}

std::optional<Found> Participant::pin(Token token) {
  check_joined();
  return membership_.holds().pin(token);
}

std::optional<Found> Participant::pin_shared(Token token) {
  check_joined();
  return membership_.holds().pin_shared(token);
}

bool Participant::readable(const Fields& fields) const { return directory_.readable(fields); }

void Participant::unpin(Token token) noexcept {
  if (forked_.load()) return;
  membership_.unpin(token);
}

Maintained Participant::maintain(std::chrono::nanoseconds timeout) {
  check_not_forked();
  return membership_.maintain(timeout);
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
