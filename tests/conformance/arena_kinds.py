"""The kinds of arena over which the conformance suite runs, and a process in which a writer can live."""

import importlib.util
import multiprocessing
from dataclasses import dataclass
from typing import Any

import cuda_standin
import torch

from ec_ipc import Store


@dataclass(frozen=True)
class Kind:
    """A kind of arena, and where the writer lives."""

    arena: str
    standin: bool
    apart: bool

    @property
    def device(self) -> str:
        return "cuda" if self.arena == "cuda" and not self.standin else "cpu"

    def __str__(self) -> str:
        name = f"{self.arena}-standin" if self.standin else self.arena
        return f"{name}-{'two' if self.apart else 'one'}-process{'es' if self.apart else ''}"


def kinds() -> list[Kind]:
    """What can run here."""
    if torch.cuda.is_available() and importlib.util.find_spec("cupy") is not None:
        found = [("host", False), ("cuda", False)]
    else:
        found = [("host", False), ("cuda", True)]
    return [Kind(arena, standin, apart) for arena, standin in found for apart in (False, True)]


class OtherProcess:
    """A process that opens writing stores and does with them what it is told."""

    def __init__(self, standin: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, standin))
        self._process.start()
        theirs.close()

    def ask(self, name: str, *arguments: Any, **named: Any) -> Any:
        self._pipe.send((name, arguments, named))
        ok, value = self._pipe.recv()
        if not ok:
            raise value
        return value

    def end(self) -> None:
        self._pipe.close()
        self._process.join()
        assert self._process.exitcode == 0


class Elsewhere:
    """A writing store in another process: its methods are called there. One at a time."""

    def __init__(self, process: OtherProcess, namespace: str, **options: Any) -> None:
        self.namespace = namespace
        self._process = process
        process.ask("open", namespace, **options)

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **named: self._process.ask(name, *arguments, **named)


def _serve(pipe: Any, standin: bool) -> None:
    if standin:
        cuda_standin.install()
    store: Any = None
    while True:
        try:
            name, arguments, named = pipe.recv()
        except EOFError:
            return
        try:
            if name == "open":
                store = Store.open(*arguments, **named)
                pipe.send((True, None))
            else:
                pipe.send((True, getattr(store, name)(*arguments, **named)))
        except Exception as error:
            pipe.send((False, error))
