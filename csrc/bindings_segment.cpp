// Segment and the records it hands out. What may wait for the writer byte runs without the GIL.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"

namespace ec_ipc::bindings {
namespace {

using nb::literals::operator""_a;
using Shape = std::vector<u64>;

template <class Call>
auto without_gil(Call&& call) {
  const nb::gil_scoped_release released;
  return call();
}

nb::object to_pin(const PySegment& self, const std::optional<Found>& found) {
  if (!found) return nb::none();
  // The hold exists from here on, so that a failing allocation gives it back.
  return nb::cast(PyPin{Hold(self.participant, *found), {}});
}

Request to_request(const nb::bytes& digest, u64 nbytes, u64 dtype, const Shape& shape, u64 announce,
                   double ttl_s, bool deallocate) {
  if (shape.size() > kMaxRank) {
    throw std::invalid_argument("the shape has " + std::to_string(shape.size()) +
                                " dimensions, but may have at most " + std::to_string(kMaxRank));
  }
  Request request;
  request.digest = to_digest(digest);
  request.nbytes = nbytes;
  request.dtype = dtype;
  request.rank = shape.size();
  std::copy(shape.begin(), shape.end(), request.shape.begin());
  request.announced = announce;
  request.ttl_ns = static_cast<u64>(nanoseconds(ttl_s).count());
  request.deallocate = deallocate;
  return request;
}

std::vector<Found> entries(const Participant& participant) {
  std::vector<Found> all;
  for (u64 i = 0; i < participant.segment().view().geometry.entry_count; ++i) {
    if (auto found = participant.snapshot(i)) all.push_back(*found);
  }
  return all;
}

std::vector<ArenaRecord> arenas(const Participant& participant, bool only_dead) {
  std::vector<ArenaRecord> all;
  for (unsigned slot = 0; slot < kMaxParticipants; ++slot) {
    const auto record = participant.arena(slot);
    if (record && !(only_dead && participant.owner_alive(slot))) all.push_back(*record);
  }
  return all;
}

Counter counter_named(const std::string& name) {
  for (unsigned i = 0; i < kCounterCount; ++i) {
    if (name == kCounterNames[i]) return static_cast<Counter>(i);
  }
  throw std::invalid_argument("there is no counter named '" + name + "'");
}

void set_arena(PySegment& self, u64 kind, u64 nbytes, const nb::bytes& device, const nb::bytes& handle,
               u64 canary, double timeout_s) {
  ArenaRecord record;
  record.kind = kind;
  record.nbytes = nbytes;
  record.canary = canary;
  record.device = padded_words<kDeviceBytes>(device, "device");
  record.handle = padded_words<kHandleBytes>(handle, "handle");
  const auto timeout = nanoseconds(timeout_s);
  without_gil([&] { self.participant->set_arena(record, timeout); });
}

void bind_records(nb::module_& m) {
  nb::class_<Found>(m, "Found")
      .def_prop_ro("entry", [](const Found& self) { return self.token.entry; })
      .def_prop_ro("generation", [](const Found& self) { return self.token.generation; })
      .def_prop_ro("state", [](const Found& self) { return self.word.state; })
      .def_prop_ro("announced", [](const Found& self) { return self.word.announced; })
      .def_prop_ro("nbytes", [](const Found& self) { return self.fields.nbytes; })
      .def_prop_ro("shape", [](const Found& self) { return to_shape(self.fields); })
      .def_prop_ro("arena_slot", [](const Found& self) { return self.fields.arena.slot; })
      .def_prop_ro("arena_incarnation", [](const Found& self) { return self.fields.arena.incarnation; })
      .def_prop_ro("writer_slot", [](const Found& self) { return self.word.writer(); });

  nb::class_<Placement>(m, "Placement")
      .def_ro("outcome", &Placement::outcome)
      .def_prop_ro("entry",
                   [](const Placement& self) {
                     return self.token ? static_cast<std::int64_t>(self.token->entry) : -1;
                   })
      .def_prop_ro("generation",
                   [](const Placement& self) {
                     return self.token ? static_cast<std::int64_t>(self.token->generation) : -1;
                   })
      .def_ro("offset", &Placement::offset);

  nb::class_<ArenaRecord>(m, "ArenaRecord")
      .def_prop_ro("slot", [](const ArenaRecord& self) { return self.ref.slot; })
      .def_prop_ro("incarnation", [](const ArenaRecord& self) { return self.ref.incarnation; })
      .def_ro("kind", &ArenaRecord::kind)
      .def_ro("nbytes", &ArenaRecord::nbytes)
      .def_prop_ro("device", [](const ArenaRecord& self) { return to_bytes(self.device); })
      .def_prop_ro("handle", [](const ArenaRecord& self) { return to_bytes(self.handle); })
      .def_ro("canary", &ArenaRecord::canary);

  nb::class_<ParticipantRecord>(m, "ParticipantRecord")
      .def_ro("slot", &ParticipantRecord::slot)
      .def_ro("incarnation", &ParticipantRecord::incarnation)
      .def_ro("pid", &ParticipantRecord::pid)
      .def_prop_ro("role", [](const ParticipantRecord& self) { return to_str(unpack_role(self.role)); })
      .def_ro("engine", &ParticipantRecord::engine)
      .def_ro("alive", &ParticipantRecord::alive);

  nb::class_<Maintained>(m, "Maintained")
      .def_ro("expired", &Maintained::expired)
      .def_ro("reclaimed", &Maintained::reclaimed)
      .def_ro("evicted", &Maintained::evicted);
}

using SegmentClass = nb::class_<PySegment>;

void bind_life(SegmentClass& c) {
  c.def(nb::new_([](int fd) { return PySegment{std::make_shared<Participant>(fd)}; }), "fd"_a)
      .def_prop_ro("max_items",
                   [](const PySegment& s) { return s.participant->segment().view().geometry.max_items; })
      .def_prop_ro("nbytes",
                   [](const PySegment& s) { return s.participant->segment().view().geometry.total_bytes; })
      .def_prop_ro("fingerprint",
                   [](const PySegment& s) { return to_bytes(s.participant->segment().fingerprint()); })
      .def_prop_ro("description",
                   [](const PySegment& s) { return to_str(s.participant->segment().description()); })
      .def_prop_ro("layout_version", [](const PySegment&) { return kLayoutVersion; })
      .def_prop_ro("slot", [](const PySegment& s) { return s.participant->slot(); })
      .def_prop_ro("incarnation", [](const PySegment& s) { return s.participant->incarnation(); })
      .def_prop_ro("holds", [](const PySegment& s) { return s.participant->holds(); })
      .def("fileno", [](const PySegment& s) { return s.participant->fd(); })
      .def(
          "join",
          [](PySegment& s, const std::string& role, u64 engine, double timeout_s) {
            const auto timeout = nanoseconds(timeout_s);
            return without_gil([&] { return s.participant->join(role, engine, timeout); });
          },
          "role"_a, "engine"_a, "timeout_s"_a)
      .def(
          "leave",
          [](PySegment& s, double timeout_s) {
            const auto timeout = nanoseconds(timeout_s);
            return without_gil([&] { return s.participant->leave(timeout); });
          },
          "timeout_s"_a)
      .def("anyone_else", [](const PySegment& s) { return s.participant->anyone_else(); })
      .def(
          "maintain",
          [](PySegment& s, double timeout_s) {
            const auto timeout = nanoseconds(timeout_s);
            return without_gil([&] { return s.participant->maintain(timeout); });
          },
          "timeout_s"_a)
      .def("participants", [](const PySegment& s) {
        nb::list list;
        for (const auto& record : s.participant->participants()) list.append(nb::cast(record));
        return list;
      });
}

void bind_items(SegmentClass& c) {
  c.def(
       "find",
       [](const PySegment& s, const nb::bytes& digest) { return s.participant->find(to_digest(digest)); },
       "digest"_a)
      .def(
          "reserve",
          [](PySegment& s, const nb::bytes& digest, u64 nbytes, u64 dtype, const Shape& shape, u64 announce,
             double ttl_s, bool deallocate, double timeout_s) {
            const Request request = to_request(digest, nbytes, dtype, shape, announce, ttl_s, deallocate);
            const auto timeout = nanoseconds(timeout_s);
            return without_gil([&] { return s.participant->reserve(request, timeout); });
          },
          "digest"_a, "nbytes"_a, "dtype"_a, "shape"_a, "announce"_a, "ttl_s"_a, "deallocate"_a,
          "timeout_s"_a)
      .def(
          "announce",
          [](PySegment& s, const nb::bytes& digest, u64 n, double ttl_s, double timeout_s) {
            const Digest key = to_digest(digest);
            const auto ttl_ns = static_cast<u64>(nanoseconds(ttl_s).count());
            const auto timeout = nanoseconds(timeout_s);
            return without_gil([&] { return s.participant->announce(key, n, ttl_ns, timeout); });
          },
          "digest"_a, "n"_a, "ttl_s"_a, "timeout_s"_a)
      .def(
          "publish",
          [](PySegment& s, std::int64_t entry, std::int64_t generation, u64 announce) {
            return s.participant->publish(to_token(entry, generation), announce);
          },
          "entry"_a, "generation"_a, "announce"_a = 0)
      .def(
          "abort",
          [](PySegment& s, std::int64_t entry, std::int64_t generation) {
            return s.participant->abort(to_token(entry, generation));
          },
          "entry"_a, "generation"_a)
      .def(
          "pin",
          [](PySegment& s, const nb::bytes& digest) {
            return to_pin(s, s.participant->pin(to_digest(digest)));
          },
          "digest"_a)
      .def(
          "pin_token",
          [](PySegment& s, std::int64_t entry, std::int64_t generation) {
            return to_pin(s, s.participant->pin(to_token(entry, generation)));
          },
          "entry"_a, "generation"_a)
      .def(
          "pin_shared",
          [](PySegment& s, std::int64_t entry, std::int64_t generation) {
            return to_pin(s, s.participant->pin_shared(to_token(entry, generation)));
          },
          "entry"_a, "generation"_a)
      .def(
          "settle",
          [](PySegment& s, std::int64_t entry, std::int64_t generation, u64 n) {
            return s.participant->settle(to_token(entry, generation), n);
          },
          "entry"_a, "generation"_a, "n"_a = 1)
      .def(
          "settle_key",
          [](PySegment& s, const nb::bytes& digest, u64 n) {
            return s.participant->settle(to_digest(digest), n);
          },
          "digest"_a, "n"_a = 1)
      .def("entries",
           [](const PySegment& s) {
             nb::list list;
             for (const Found& found : entries(*s.participant)) list.append(nb::cast(found));
             return list;
           })
      .def("total_holds", [](const PySegment& s) { return s.participant->total_holds(); })
      .def("holds_by_slot", [](const PySegment& s) {
        nb::dict holds;
        const auto counts = s.participant->holds_by_slot();
        for (unsigned slot = 0; slot < kMaxParticipants; ++slot) {
          if (counts[slot] != 0) holds[nb::int_(slot)] = counts[slot];
        }
        return holds;
      });
}

void bind_arenas(SegmentClass& c) {
  const auto list_of = [](const PySegment& s, bool only_dead) {
    nb::list list;
    for (const ArenaRecord& record : arenas(*s.participant, only_dead)) list.append(nb::cast(record));
    return list;
  };
  c.def("set_arena", &set_arena, "kind"_a, "nbytes"_a, "device"_a, "handle"_a, "canary"_a, "timeout_s"_a)
      .def(
          "arena", [](const PySegment& s, unsigned slot) { return s.participant->arena(slot); }, "slot"_a)
      .def("arenas", [list_of](const PySegment& s) { return list_of(s, false); })
      .def("dead_arenas", [list_of](const PySegment& s) { return list_of(s, true); })
      .def(
          "arena_used", [](const PySegment& s, unsigned slot) { return s.participant->arena_used(slot); },
          "slot"_a)
      .def(
          "fits",
          [](const PySegment& s, unsigned slot, u64 nbytes) { return s.participant->fits(slot, nbytes); },
          "arena_slot"_a, "nbytes"_a)
      .def(
          "forget_arena",
          [](PySegment& s, unsigned slot, u64 incarnation, double timeout_s) {
            const auto timeout = nanoseconds(timeout_s);
            return without_gil([&] { return s.participant->forget_arena({slot, incarnation}, timeout); });
          },
          "slot"_a, "incarnation"_a, "timeout_s"_a)
      .def(
          "mark_mapped",
          [](PySegment& s, unsigned slot, u64 incarnation) { s.participant->mark_mapped(slot, incarnation); },
          "slot"_a, "incarnation"_a)
      .def(
          "mapped_by",
          [](const PySegment& s, u64 engine, const std::string& role, unsigned slot, u64 incarnation) {
            return s.participant->mapped_by(engine, role, {slot, incarnation});
          },
          "engine"_a, "role"_a, "slot"_a, "incarnation"_a);
}

void bind_numbers(SegmentClass& c) {
  c.def(
       "count",
       [](PySegment& s, const std::string& counter, u64 n) {
         s.participant->count(counter_named(counter), n);
       },
       "counter"_a, "n"_a = 1)
      .def("counters",
           [](const PySegment& s) {
             nb::dict sums;
             for (unsigned i = 0; i < kCounterCount; ++i) {
               sums[kCounterNames[i]] = s.participant->counter(static_cast<Counter>(i));
             }
             return sums;
           })
      .def(
          "counters_of",
          [](const PySegment& s, const std::vector<unsigned>& slots) {
            nb::list values;
            for (unsigned i = 0; i < kCounterCount; ++i) {
              u64 sum = 0;
              for (const unsigned slot : slots)
                sum += s.participant->counter_of(slot, static_cast<Counter>(i));
              values.append(sum);
            }
            return nb::tuple(values);
          },
          "slots"_a)
      .def_prop_rw(
          "pressure", [](const PySegment& s) { return s.participant->pressure(); },
          [](PySegment& s, u64 value) { s.participant->set_pressure(value); })
      .def_prop_ro("epoch", [](const PySegment& s) { return s.participant->epoch(); })
      .def("bump_epoch", [](PySegment& s) { return s.participant->bump_epoch(); });
}

}  // namespace

void bind_segment(nb::module_& m) {
  bind_records(m);
  SegmentClass c(m, "Segment", nb::is_weak_referenceable());
  bind_life(c);
  bind_items(c);
  bind_arenas(c);
  bind_numbers(c);
}

}  // namespace ec_ipc::bindings
