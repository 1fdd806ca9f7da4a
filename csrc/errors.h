// Everything the core throws on purpose. Each has a Python exception of the same name.
#pragma once

#include <stdexcept>
#include <string>

namespace ec_ipc {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The segment, or a number in it, is not what this build can work with.
struct SegmentError : Error {
  using Error::Error;
};

// A lock byte was held by somebody else for the whole of a bounded wait.
struct LockTimeout : Error {
  using Error::Error;
};

// The handle was inherited through fork(): its locks belong to the parent.
struct ForkedHandle : Error {
  using Error::Error;
};

// Every participant slot is taken.
struct NoFreeSlot : Error {
  using Error::Error;
};

}  // namespace ec_ipc
