// Mapping and Pin. A tensor over a pin's bytes keeps the pin, and so its hold, and the mapping alive.
#include <nanobind/ndarray.h>

#include "bindings.h"
#include "copy.h"

namespace ec_ipc::bindings {
namespace {

int no_buffer(Py_buffer* view, const char* why) {
  PyErr_SetString(PyExc_BufferError, why);
  view->obj = nullptr;
  return -1;
}

int mapping_getbuffer(PyObject* self, Py_buffer* view, int flags) {
  if (!nb::inst_ready(self)) return no_buffer(view, "this Mapping was not made by its constructor");
  const Memory& memory = *nb::inst_ptr<PyMapping>(self)->memory;
  return PyBuffer_FillInfo(view, self, memory.data(), static_cast<Py_ssize_t>(memory.size()), 0, flags);
}

PyType_Slot mapping_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(mapping_getbuffer)}, {0, nullptr}};

PyMapping make_mapping(int fd, u64 nbytes, bool populate) {
  const OwnedFd owned(fd);
  const u64 size = file_size(fd);
  if (nbytes == 0 || nbytes > size) {
    throw SegmentError("the arena's memory has " + std::to_string(size) + " bytes, but its record says " +
                       std::to_string(nbytes) + "; its owner must make it again");
  }
  const nb::gil_scoped_release released;
  return {std::make_shared<Memory>(fd, nbytes, populate)};
}

// Bytes of this process at `address`. The caller keeps them alive and still.
void write(const PyMapping& mapping, u64 offset, std::uintptr_t address, u64 nbytes, u64 threads) {
  if (nbytes > mapping.memory->size() || offset > mapping.memory->size() - nbytes) {
    throw SegmentError("a write of " + std::to_string(nbytes) + " bytes at " + std::to_string(offset) +
                       " ends outside of the mapping's " + std::to_string(mapping.memory->size()));
  }
  const nb::gil_scoped_release released;
  copy_bytes(static_cast<std::byte*>(mapping.memory->data()) + offset,
             reinterpret_cast<const std::byte*>(address), nbytes, threads);
}

// A DLPack capsule of `code` and `bits`, as its dtypes are written, over the extent in the pin's arena.
nb::ndarray<> to_dlpack(nb::handle_t<PyPin> self, nb::handle_t<PyMapping> mapping, std::uint8_t code,
                        std::uint8_t bits) {
  PyPin& pin = nb::cast<PyPin&>(self);
  const Memory& memory = *nb::cast<const PyMapping&>(mapping).memory;
  const auto& [token, word, fields] = pin.hold.found();
  if (pin.hold.released()) {
    throw SegmentError("the pin is released: its extent may be in use by another item");
  }
  if (fields.nbytes > memory.size() || fields.offset > memory.size() - fields.nbytes) {
    throw SegmentError("the extent of entry " + std::to_string(token.entry) + " ends at byte " +
                       std::to_string(fields.offset + fields.nbytes) + ", but the mapping has " +
                       std::to_string(memory.size()) + "; map the arena that the pin names");
  }
  const std::optional<u64> elements = shape_product(fields.shape, fields.rank, fields.nbytes);
  if (bits == 0 || bits % 8 != 0 || !elements || *elements * (bits / 8) != fields.nbytes) {
    throw SegmentError("entry " + std::to_string(token.entry) + " has " + std::to_string(fields.nbytes) +
                       " bytes, which are not what " + std::to_string(elements.value_or(0)) +
                       " elements of " + std::to_string(bits) + " bits take");
  }
  if (pin.mapping.is_valid() && !pin.mapping.is(mapping)) {
    throw SegmentError("the pin has a capsule over another mapping already; take another pin");
  }
  pin.mapping = nb::borrow(mapping);
  std::array<std::size_t, kMaxRank> shape{};
  std::copy_n(fields.shape.begin(), fields.rank, shape.begin());
  return {static_cast<std::byte*>(memory.data()) + fields.offset,
          fields.rank,
          shape.data(),
          self,
          nullptr,
          nb::dlpack::dtype{code, bits, 1}};
}

void release(PyPin& pin) {
  if (pin.mapping.is_valid()) {
    throw SegmentError("a tensor over the pin's bytes may be in use; drop the object instead");
  }
  pin.hold.release();
}

}  // namespace

void bind_memory(nb::module_& m) {
  using nb::literals::operator""_a;
  nb::class_<PyMapping>(m, "Mapping", nb::type_slots(mapping_slots), nb::is_weak_referenceable())
      .def(nb::new_(&make_mapping), "fd"_a, "nbytes"_a, "populate"_a)
      .def_prop_ro("nbytes", [](const PyMapping& self) { return self.memory->size(); })
      .def("write", &write, "offset"_a, "address"_a, "nbytes"_a, "threads"_a = 1)
      .def_prop_ro("address", [](const PyMapping& self) {
        return reinterpret_cast<std::uintptr_t>(self.memory->data());
      });

  nb::class_<PyPin>(m, "Pin")
      .def_prop_ro("entry", [](const PyPin& self) { return self.hold.found().token.entry; })
      .def_prop_ro("generation", [](const PyPin& self) { return self.hold.found().token.generation; })
      .def_prop_ro("arena_slot", [](const PyPin& self) { return self.hold.found().fields.arena.slot; })
      .def_prop_ro("arena_incarnation",
                   [](const PyPin& self) { return self.hold.found().fields.arena.incarnation; })
      .def_prop_ro("offset", [](const PyPin& self) { return self.hold.found().fields.offset; })
      .def_prop_ro("nbytes", [](const PyPin& self) { return self.hold.found().fields.nbytes; })
      .def_prop_ro("dtype", [](const PyPin& self) { return self.hold.found().fields.dtype; })
      .def_prop_ro("shape", [](const PyPin& self) { return to_shape(self.hold.found().fields); })
      .def_prop_ro("current", [](const PyPin& self) { return self.hold.current(); })
      .def_prop_ro("released", [](const PyPin& self) { return self.hold.released(); })
      .def("to_dlpack", &to_dlpack, "mapping"_a, "code"_a, "bits"_a)
      .def("release", &release);
}

}  // namespace ec_ipc::bindings
