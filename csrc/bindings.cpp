// The module ec_ipc._core: constants, errors, and what needs no Segment.
#include "bindings.h"
#include "copy.h"

#include <nanobind/stl/string.h>

namespace ec_ipc::bindings {
namespace {

void bind_errors(nb::module_& m) {
  // The base first: the translator that was registered last is asked first.
  const nb::exception<Error> base(m, "ECIPCError", PyExc_RuntimeError);
  nb::exception<SegmentError>(m, "SegmentError", base);
  nb::exception<LockTimeout>(m, "LockTimeout", base);
  nb::exception<ForkedHandle>(m, "ForkedHandle", base);
  nb::exception<NoFreeSlot>(m, "NoFreeSlot", base);
}

void bind_constants(nb::module_& m) {
  m.attr("MAGIC") = kMagic;
  m.attr("LAYOUT_VERSION") = kLayoutVersion;
  m.attr("MAX_PARTICIPANTS") = kMaxParticipants;
  m.attr("MAX_RANK") = kMaxRank;
  m.attr("MAX_ANNOUNCED") = kMaxAnnounced;
  m.attr("DIGEST_BYTES") = kDigestBytes;
  m.attr("FINGERPRINT_BYTES") = kFingerprintBytes;
  m.attr("HANDLE_BYTES") = kHandleBytes;
  m.attr("DEVICE_BYTES") = kDeviceBytes;
  m.attr("ALIGNMENT") = kAlignment;
  m.attr("COPY_THREAD_BYTES") = kThreadBytes;
}

void bind_enums(nb::module_& m) {
  nb::enum_<State>(m, "State")
      .value("FREE", State::kFree)
      .value("WRITING", State::kWriting)
      .value("READY", State::kReady);
  nb::enum_<Outcome>(m, "Outcome")
      .value("RESERVED", Outcome::kReserved)
      .value("ANNOUNCED", Outcome::kAnnounced)
      .value("WRITING_HERE", Outcome::kWritingHere)
      .value("WRITING_ELSEWHERE", Outcome::kWritingElsewhere)
      .value("ABSENT", Outcome::kAbsent)
      .value("ARENA_FULL", Outcome::kArenaFull)
      .value("DIRECTORY_FULL", Outcome::kDirectoryFull)
      .value("TOO_LARGE", Outcome::kTooLarge)
      .value("SATURATED", Outcome::kSaturated);
}

void bind_functions(nb::module_& m) {
  using nb::literals::operator""_a;
  m.def("segment_bytes", &segment_bytes, "max_items"_a);
  m.def(
      "initialise_segment",
      [](int fd, u64 max_items, const nb::bytes& fingerprint, const std::string& description) {
        const auto* data = reinterpret_cast<const std::byte*>(fingerprint.c_str());
        initialise_segment(fd, max_items, {data, fingerprint.size()}, description);
      },
      "fd"_a, "max_items"_a, "fingerprint"_a, "description"_a);
  m.def("segment_is_ready", &segment_is_ready, "fd"_a);
  m.def(
      "lock_creator",
      [](int fd, double timeout_s) {
        const auto deadline = Deadline::after(nanoseconds(timeout_s));
        const nb::gil_scoped_release released;
        lock_byte::lock(fd, lock_byte::kCreator, deadline, "creator");
      },
      "fd"_a, "timeout_s"_a);
  m.def(
      "anyone_alive",
      [](int fd) { return lock_byte::held_by_another(fd, lock_byte::kLiveness, kMaxParticipants); }, "fd"_a);
  m.def("unlock_creator", [](int fd) { lock_byte::unlock(fd, lock_byte::kCreator); }, "fd"_a);
}

}  // namespace

NB_MODULE(_core, m) {
  // Tensors that are alive at exit keep their pins: the kernel's release of the lock bytes returns
  // those holds, so there is nothing to warn of.
  nb::set_leak_warnings(false);
  bind_errors(m);
  bind_constants(m);
  bind_enums(m);
  bind_functions(m);
  bind_memory(m);
  bind_segment(m);
}

}  // namespace ec_ipc::bindings
