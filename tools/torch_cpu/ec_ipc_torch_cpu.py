"""Lets torchvision, torchaudio and torchcodec live beside a CPU build of torch.

The wheels of all three on the package index are CUDA builds, whose compiled libraries do
not load beside a CPU torch. vLLM and transformers import them, but pictures need only
the parts that are plain torch. So

* torchvision, whose import stops because ``torchvision::nms`` does not exist, gets the
  schemas that the import looks up;
* torchaudio, whose import raises OSError, goes on as where it was built without its library;
* torchcodec, which is nothing without its library, fails with ImportError instead of
  OSError, which is what vLLM is prepared for.

What needs compiled code still fails, with the packages' own explanation.

A ``.pth`` file imports this module in every Python of the environment, so it must stay
cheap: it adds one entry to ``sys.meta_path`` and does nothing until one of them is imported.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder, SourceFileLoader

TYPE_CHECKING = False  # importing typing would cost every start some milliseconds
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

_library: Any = None  # keeps the definitions alive


def _compiled_operators_load(folders: list[str]) -> bool:
    import os

    import torch

    for folder in folders:
        for name in ("_C.so", "_C.pyd"):
            path = os.path.join(folder, name)
            if os.path.exists(path):
                try:
                    torch.ops.load_library(path)  # type: ignore[no-untyped-call]
                except OSError:
                    return False
                return True
    return False


def define_missing_operators(folders: list[str]) -> None:
    """Define the schemas if torchvision's own library, in one of ``folders``, does not load."""
    global _library
    if _library is not None or _compiled_operators_load(folders):
        return
    from torch.library import Library

    _library = Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for schema in SCHEMAS:
        _library.define(schema)


def tolerate_unloadable_library(utils: ModuleType) -> None:
    """A torchaudio library that does not load counts as one that was not built."""
    load = getattr(utils, "_load_lib", None)
    if load is None:
        return

    def load_or_go_without(name: str) -> bool:
        try:
            return bool(load(name))
        except OSError:
            return False

    utils.__dict__["_load_lib"] = load_or_go_without


class _Vision(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        define_missing_operators(list(module.__path__))
        super().exec_module(module)


class _Audio(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        tolerate_unloadable_library(module)


class _Codec(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        try:
            super().exec_module(module)
        except OSError as error:
            raise ImportError(f"torchcodec does not work beside this torch: {error}") from error


LOADERS = {"torchvision": _Vision, "torchaudio._extension.utils": _Audio, "torchcodec": _Codec}


class _Finder:
    """Only looks at the names in LOADERS; a mere probe for one of them changes nothing."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in LOADERS:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = LOADERS[name](spec.loader.name, spec.loader.path)
        return spec


def install() -> None:
    if not any(finder is _Finder for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder)


install()
