#include "liveness.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <thread>

#include "errors.h"

namespace ec_ipc {

bool Backoff::wait() {
  const auto now = Clock::now();
  if (now >= deadline_.at) return false;
  std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(nap_, deadline_.at - now));
  nap_ = std::min<std::chrono::nanoseconds>(nap_ * 2, std::chrono::milliseconds(1));
  return true;
}

namespace lock_byte {
namespace {

struct flock request(short type, std::int64_t first, std::int64_t count) {
  struct flock range{};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = first;
  range.l_len = count;
  range.l_pid = 0;
  return range;
}

int control(int fd, int command, struct flock& range) {
  int rc = 0;
  do {
    rc = ::fcntl(fd, command, &range);
  } while (rc == -1 && errno == EINTR);
  return rc;
}

[[noreturn]] void throw_errno(const char* verb) {
  throw SegmentError(std::string(verb) +
                     " a lock byte of the segment failed: " + std::generic_category().message(errno) +
                     "; the segment must lie on a file system with open-file-description locks");
}

}  // namespace

bool try_lock(int fd, std::int64_t byte) {
  auto range = request(F_WRLCK, byte, 1);
  if (control(fd, F_OFD_SETLK, range) == 0) return true;
  if (errno == EAGAIN || errno == EACCES) return false;
  throw_errno("locking");
}

void lock(int fd, std::int64_t byte, Deadline deadline, const char* name) {
  Backoff backoff(deadline);
  while (!try_lock(fd, byte)) {
    if (!backoff.wait()) throw_timeout(name);
  }
}

void unlock(int fd, std::int64_t byte) noexcept {
  auto range = request(F_UNLCK, byte, 1);
  control(fd, F_OFD_SETLK, range);
}

bool held_by_another(int fd, std::int64_t first, std::int64_t count) {
  auto range = request(F_WRLCK, first, count);
  if (control(fd, F_OFD_GETLK, range) != 0) {
    throw_errno("querying");
  }
  return range.l_type != F_UNLCK;
}

void throw_timeout(const char* name) {
  throw LockTimeout(std::string("the ") + name +
                    " byte of the segment is held by another process or thread, which may be stopped; "
                    "try again, or end that process");
}

}  // namespace lock_byte
}  // namespace ec_ipc
