"""Signatures and calls as they stand in a Python file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Call:
    """``receiver.method(...)`` in a file."""

    receiver: str
    method: str
    line: int
    positional: int
    keywords: tuple[str, ...]
    spreads: bool  # has *args or **kwargs

    def __str__(self) -> str:
        parts = ["_"] * self.positional + [f"{name}=_" for name in self.keywords]
        return f"({', '.join([*parts, '**_'] if self.spreads else parts)})"


@dataclass
class Signature:
    """The parameters of a method, without self or cls."""

    names: list[str]  # that may be given by position
    required: list[str]
    keyword_only: list[str] = field(default_factory=list)
    rest: bool = False  # *args
    anything: bool = False  # **kwargs

    @classmethod
    def of(cls, function: Function, method: bool = True) -> Signature:
        spec = function.args
        names = [arg.arg for arg in (*spec.posonlyargs, *spec.args)]
        static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in function.decorator_list)
        defaults = len(spec.defaults)
        required = names[: len(names) - defaults]
        if method and not static:
            names, required = names[1:], required[1:]
        only = [arg.arg for arg in spec.kwonlyargs]
        needed = [
            a.arg for a, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if default is None
        ]
        return cls(names, required + needed, only, spec.vararg is not None, spec.kwarg is not None)

    def __str__(self) -> str:
        parts = [name if name in self.required else f"{name}=" for name in self.names]
        parts += ["*args"] if self.rest else ["*"] if self.keyword_only else []
        parts += [name if name in self.required else f"{name}=" for name in self.keyword_only]
        return f"({', '.join([*parts, '**kwargs'] if self.anything else parts)})"

    def refuses(self, theirs: Signature) -> str | None:
        """Why not every call that ``theirs`` allows is one that this allows."""
        for place, name in enumerate(theirs.names):
            if place < len(self.names):
                if self.names[place] != name:
                    return f"argument {place + 1} is {name!r} there and {self.names[place]!r} here"
            elif not (self.anything and name in theirs.required) and not self.rest:
                return f"there is no argument {name!r} here"
        for name in theirs.keyword_only:
            if name not in (*self.names, *self.keyword_only) and not self.anything:
                return f"there is no keyword {name!r} here"
        if theirs.anything and not self.anything:
            return "other keywords are not accepted here"
        for name in self.required:
            if name not in theirs.required:
                return f"argument {name!r} is required here and not there"
        return None

    def cannot_take(self, call: Call) -> str | None:
        """Why the call does not fit."""
        if call.spreads and not call.keywords and not call.positional:
            return None
        if call.positional > len(self.names) and not self.rest:
            return f"{call.positional} arguments by position, and {self} takes {len(self.names)}"
        for name in call.keywords:
            if name not in (*self.names, *self.keyword_only) and not self.anything:
                return f"{self} has no keyword {name!r}"
        given = {*self.names[: call.positional], *call.keywords}
        missing = [name for name in self.required if name not in given]
        return f"{', '.join(missing)} is not given" if missing and not call.spreads else None


class Module:
    """One source file."""

    def __init__(self, path: Path) -> None:
        self.text = path.read_text()
        self.tree = ast.parse(self.text)

    def _class(self, name: str) -> ast.ClassDef | None:
        found = [node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef) and node.name == name]
        return found[0] if found else None

    def _own(self, name: str) -> list[Function]:
        """Methods of the class and of its bases in the same file."""
        node = self._class(name)
        if node is None:
            return []
        inherited = [
            f for base in node.bases if isinstance(base, ast.Name) and base.id != name
            for f in self._own(base.id)
        ]  # fmt: skip
        return inherited + [item for item in node.body if isinstance(item, Function)]

    def methods(self, name: str) -> dict[str, Signature]:
        return {function.name: Signature.of(function) for function in self._own(name)}

    def abstract(self, name: str) -> set[str]:
        return {f.name for f in self._own(name) if "abstractmethod" in map(ast.unparse, f.decorator_list)}

    def functions(self) -> dict[str, Signature]:
        body = self.tree.body
        return {node.name: Signature.of(node, method=False) for node in body if isinstance(node, Function)}

    def assigned(self, name: str) -> set[str]:
        """``self.X`` that a class assigns."""
        return {
            target.attr
            for function in self._own(name)
            for node in ast.walk(function)
            if isinstance(node, (ast.Assign, ast.AnnAssign))
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Attribute)
        }

    def members(self, name: str) -> set[str]:
        """Fields, methods and attributes of a class."""
        node = self._class(name)
        if node is None:
            return set()
        fields = {
            target.id
            for item in node.body
            if isinstance(item, (ast.Assign, ast.AnnAssign))
            for target in (item.targets if isinstance(item, ast.Assign) else [item.target])
            if isinstance(target, ast.Name)
        }
        bases = [base.id for base in node.bases if isinstance(base, ast.Name) and base.id != name]
        inherited = {member for base in bases for member in self.members(base)}
        return fields | set(self.methods(name)) | self.assigned(name) | inherited

    def calls(self, methods: set[str]) -> Iterator[Call]:
        for node in ast.walk(self.tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if node.func.attr not in methods:
                continue
            starred = any(isinstance(arg, ast.Starred) for arg in node.args)
            keywords = tuple(k.arg for k in node.keywords if k.arg is not None)
            yield Call(
                ast.unparse(node.func.value),
                node.func.attr,
                node.lineno,
                sum(not isinstance(arg, ast.Starred) for arg in node.args),
                keywords,
                starred or len(keywords) < len(node.keywords),
            )
