// What the binding files share. They convert and nothing else.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <stdexcept>

#include "participant.h"

namespace nb = nanobind;

namespace ec_ipc::bindings {

// The Python objects own these, and share what is inside with the pins made from them.
struct PySegment {
  std::shared_ptr<Participant> participant;
};
struct PyMapping {
  std::shared_ptr<Memory> memory;
};
struct PyPin {
  Hold hold;
  nb::object mapping;  // of a pin that tensors have been made from
};

void bind_memory(nb::module_& m);   // Mapping and Pin
void bind_segment(nb::module_& m);  // Segment and its records

// Seconds, as Python gives them, to a wait that no clock overflows on.
inline std::chrono::nanoseconds nanoseconds(double seconds) {
  if (std::isnan(seconds)) throw std::invalid_argument("a time is NaN, but must be a number of seconds");
  constexpr double kThirtyYears = 1e9;
  return std::chrono::nanoseconds(static_cast<std::int64_t>(std::clamp(seconds, 0.0, kThirtyYears) * 1e9));
}

inline std::invalid_argument wrong_size(const char* what, std::size_t has, const char* must,
                                        std::size_t wanted) {
  return std::invalid_argument("the " + std::string(what) + " has " + std::to_string(has) + " bytes, but " +
                               must + " have " + std::to_string(wanted));
}

template <std::size_t Bytes>
Words<Bytes> padded_words(const nb::bytes& bytes, const char* what) {
  if (bytes.size() > Bytes) throw wrong_size(what, bytes.size(), "may at most", Bytes);
  Words<Bytes> words{};
  std::memcpy(words.data(), bytes.c_str(), bytes.size());
  return words;
}

inline Digest to_digest(const nb::bytes& bytes) {
  if (bytes.size() != kDigestBytes) throw wrong_size("digest", bytes.size(), "must", kDigestBytes);
  return padded_words<kDigestBytes>(bytes, "digest");
}

template <std::size_t N>
nb::bytes to_bytes(const std::array<u64, N>& words) {
  return nb::bytes(words.data(), sizeof words);
}

// Text of another process need not be UTF-8.
inline nb::str to_str(const std::string& text) {
  return nb::steal<nb::str>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

inline nb::tuple to_shape(const Fields& fields) {
  const u64 rank = std::min<u64>(fields.rank, kMaxRank);
  nb::object shape = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(rank)));
  for (u64 i = 0; i < rank; ++i) {
    PyTuple_SET_ITEM(shape.ptr(), static_cast<Py_ssize_t>(i), PyLong_FromUnsignedLongLong(fields.shape[i]));
  }
  return nb::borrow<nb::tuple>(shape);
}

// A token may have come through a request of a user: anything is taken, and what cannot be a token
// names no entry.
inline Token to_token(std::int64_t entry, std::int64_t generation) {
  if (entry < 0 || generation < 0 || generation >= kGenerations) return {~u64{0}, 0};
  return {static_cast<u64>(entry), static_cast<std::uint32_t>(generation)};
}

}  // namespace ec_ipc::bindings
