"""On a GPU, what the timer copies out of an arena is copied in the order of the steps' own work."""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ec_ipc.connector.consumer_worker import ConsumerWorker
from ec_ipc.connector.metadata import StepMetadata


def test_the_timer_copies_on_the_stream_of_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = ["the timer's"]

    @contextlib.contextmanager
    def on(stream: Any) -> Iterator[None]:
        streams.append(stream)
        yield
        streams.pop()

    class Recorded(torch.Tensor):
        def clone(self) -> Any:
            return streams[-1]

    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "the step's")
    store: Any = SimpleNamespace(
        segment=SimpleNamespace(pressure=0, count=lambda counter: None), on_maintenance=None
    )
    worker = ConsumerWorker(store, copies=False, device=torch.device("cuda"), counts_reads=False)
    cache: dict[str, Any] = {"a": torch.ones(3).as_subclass(Recorded)}
    worker.start_load_caches(StepMetadata(), cache)
    worker._views["a"] = cache["a"].data_ptr()
    store.segment.pressure = 1
    store.on_maintenance()
    assert cache["a"] == "the step's"
    assert streams == ["the timer's"]
