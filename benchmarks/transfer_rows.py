"""The ways to hand a tensor to another process, each as a writer's and a reader's half.

A hand-over is ``publish`` here, then ``locate``, ``read`` and a touch of every byte there. Where
something has to tell the reader that it may begin, that is one message on a pipe, the same for all;
what ``publish`` returns travels in it. Rows that bring the bytes by themselves are awaited instead.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import pickle
import shutil
import tempfile
from dataclasses import dataclass, field
from multiprocessing.queues import Queue
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

ARENA_BYTES = 576 << 20
KEPT_BYTES = 1 << 30
SHM = Path("/dev/shm")


@dataclass(frozen=True)
class Places:
    """What both processes know."""

    namespace: str
    region: Path  # plain shared memory
    tmpfs: Path
    disk: Path
    queue: Queue[Any]
    created: list[Path] = field(default_factory=list)

    @classmethod
    def make(cls, queue: Queue[Any]) -> Places:
        name = f"bench-{os.getpid()}"
        region = SHM / f"ec_ipc-{name}-region"
        with region.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, ARENA_BYTES)
        tmpfs, disk = (Path(tempfile.mkdtemp(prefix=f"ec_ipc-{name}-", dir=where)) for where in (SHM, None))
        return cls(name, region, tmpfs, disk, queue, [region, tmpfs, disk])

    def remove(self) -> None:
        for path in self.created:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def map_region(path: Path) -> torch.Tensor:
    """All of the plain region, every page of it present."""
    with path.open("r+b") as file:
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
        memory = mmap.mmap(file.fileno(), ARENA_BYTES, flags=flags)
    return torch.frombuffer(memory, dtype=torch.uint8)


class Row:
    """Both halves do nothing unless a row says otherwise."""

    name = ""
    copies = 0  # how often each byte is copied
    announces_itself = False  # the bytes bring the news along

    def __init__(self, places: Places, writes: bool) -> None:
        self.places = places
        self.open_writer() if writes else self.open_reader()

    def open_writer(self) -> None: ...
    def open_reader(self) -> None: ...
    def prepare(self, source: torch.Tensor) -> torch.Tensor:
        """Outside of what is timed."""
        return source

    def publish(self, key: str, tensor: torch.Tensor) -> Any: ...
    def clean(self, key: str) -> None:
        """After the reader has finished; outside of what is timed."""

    def locate(self, payload: Any) -> Any:
        return payload

    def read(self, place: Any) -> torch.Tensor:
        raise NotImplementedError

    def close(self) -> None: ...


class EcIpc(Row):
    name = "ec_ipc, zero_copy"
    copies = 1

    def _open(self, **options: Any) -> None:
        from ec_ipc import Store

        self.store = Store.open(f"{self.places.namespace}-{self.copies}", **options)

    def open_writer(self) -> None:
        self._open(arena="host", arena_bytes=ARENA_BYTES)

    def open_reader(self) -> None:
        self._open()
        self.store.map_arenas()

    def publish(self, key: str, tensor: torch.Tensor) -> Any:
        self.store.put(key, tensor)
        return key

    def locate(self, payload: Any) -> Any:
        if self.store.find(payload) is None:
            raise LookupError(payload)
        return payload

    def read(self, place: Any) -> torch.Tensor:
        lease = self.store.get(place)
        assert lease is not None
        return lease.tensor

    def close(self) -> None:
        self.store.close()


class EcIpcCopy(EcIpc):
    name = "ec_ipc, copy"
    copies = 2

    def read(self, place: Any) -> torch.Tensor:
        return super().read(place).clone()


class Example(Row):
    """vLLM's class, its worker's and its scheduler's methods, called as the engine calls them."""

    name = "ECExampleConnector, tmpfs"
    copies = 2  # into the bytes of a file, into the file; the reader maps it

    def folder(self) -> Path:
        return self.places.tmpfs

    def _connector(self, role: str) -> Any:
        from vllm.config import ECTransferConfig
        from vllm.distributed.ec_transfer.ec_connector import example_connector as module
        from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorRole

        self._module = module
        config = ECTransferConfig(
            ec_connector="ECExampleConnector",
            ec_role=role,
            ec_connector_extra_config={"shared_storage_path": str(self.folder())},
        )
        vllm_config: Any = SimpleNamespace(ec_transfer_config=config, model_config=None)
        return module.ECExampleConnector(vllm_config, ECConnectorRole.WORKER)

    def open_writer(self) -> None:
        self.connector = self._connector("ec_producer")
        self.kept: list[str] = []

    def open_reader(self) -> None:
        self.connector = self._connector("ec_consumer")

    def publish(self, key: str, tensor: torch.Tensor) -> Any:
        self.connector.save_caches({key: tensor}, key)
        return key

    def clean(self, key: str) -> None:
        """It never deletes; only so that the machine is not filled, the oldest of many files go."""
        self.kept.append(key)
        while sum(path.stat().st_size for path in self.folder().rglob("*.safetensors")) > KEPT_BYTES:
            shutil.rmtree(self.folder() / self.kept.pop(0))

    def locate(self, payload: Any) -> Any:
        if not self.connector.has_cache_item(payload):
            raise LookupError(payload)
        return payload

    def read(self, place: Any) -> torch.Tensor:
        meta = self._module.ECExampleConnectorMetadata()
        meta.add_mm_data(self._module.MMMeta.make_meta(place, 1))
        self.connector.bind_connector_metadata(meta)
        cache: dict[str, torch.Tensor] = {}
        self.connector.start_load_caches(cache)
        return cache[place]


class ExampleOnDisk(Example):
    name = "ECExampleConnector, disk"

    def folder(self) -> Path:
        return self.places.disk


class CopyInOut(Row):
    """As vLLM's CPU connector and the shared-memory proposals do it, without their bookkeeping."""

    name = "copy in, copy out (fresh)"
    copies = 2

    def open_writer(self) -> None:
        self.region = map_region(self.places.region)

    open_reader = open_writer

    def publish(self, key: str, tensor: torch.Tensor) -> Any:
        nbytes = tensor.numel() * tensor.element_size()
        self.region[:nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)
        return nbytes, tensor.dtype, tuple(tensor.shape)

    def destination(self, nbytes: int) -> torch.Tensor:
        fresh = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return torch.frombuffer(fresh, dtype=torch.uint8)

    def read(self, place: Any) -> torch.Tensor:
        nbytes, dtype, shape = place
        return self.destination(nbytes).copy_(self.region[:nbytes]).view(dtype).view(shape)


class CopyInOutReused(CopyInOut):
    """The best case: memory that was used before, and that nobody else wants."""

    name = "copy in, copy out (reused)"

    def open_reader(self) -> None:
        super().open_reader()
        self.reused = torch.ones(ARENA_BYTES // 2, dtype=torch.uint8)

    def destination(self, nbytes: int) -> torch.Tensor:
        return self.reused[:nbytes]


class TorchQueue(Row):
    name = "torch.multiprocessing queue"
    copies = 1
    announces_itself = True

    def prepare(self, source: torch.Tensor) -> torch.Tensor:
        return source.clone()  # putting a tensor moves its storage into shared memory, once

    def publish(self, key: str, tensor: torch.Tensor) -> Any:
        self.places.queue.put(tensor)

    def read(self, place: Any) -> torch.Tensor:
        tensor: torch.Tensor = self.places.queue.get()
        return tensor


class ZeroMQ(Row):
    name = "pickle over ZeroMQ"
    copies = 4  # pickle, into the socket, out of it, unpickle
    announces_itself = True

    def open_writer(self) -> None:
        import zmq

        self.socket = zmq.Context.instance().socket(zmq.PUSH)
        port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        (self.places.disk / "port").write_text(str(port))

    def open_reader(self) -> None:
        import zmq

        self.socket = zmq.Context.instance().socket(zmq.PULL)
        self.socket.connect(f"tcp://127.0.0.1:{(self.places.disk / 'port').read_text()}")

    def publish(self, key: str, tensor: torch.Tensor) -> Any:
        self.socket.send(pickle.dumps((key, tensor.numpy()), protocol=5), copy=False)

    def read(self, place: Any) -> torch.Tensor:
        _key, array = pickle.loads(self.socket.recv(copy=False).buffer)
        return torch.from_numpy(array)

    def close(self) -> None:
        self.socket.close(linger=0)


class BareCopy(CopyInOut):
    """The limit: one copy into warm shared memory, libc's or that of torch's threads, read in place by two
    processes that know where. No name, no size, no life."""

    name = "bare copy"
    copies = 1
    BEGIN = ARENA_BYTES // 2  # memory that no other row warms for it

    def publish(self, key: str, tensor: torch.Tensor) -> Any:
        nbytes = tensor.numel() * tensor.element_size()
        if torch.get_num_threads() == 1:
            ctypes.memmove(self.region.data_ptr() + self.BEGIN, tensor.data_ptr(), nbytes)
        else:
            self.region[self.BEGIN : self.BEGIN + nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)
        return nbytes, tensor.dtype, tuple(tensor.shape)

    def read(self, place: Any) -> torch.Tensor:
        nbytes, dtype, shape = place
        return self.region[self.BEGIN : self.BEGIN + nbytes].view(dtype).view(shape)


ROWS: tuple[type[Row], ...] = (
    EcIpc,
    EcIpcCopy,
    Example,
    ExampleOnDisk,
    CopyInOut,
    CopyInOutReused,
    TorchQueue,
    ZeroMQ,
    BareCopy,
)
