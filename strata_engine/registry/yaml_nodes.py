"""Reads YAML into nodes that still know their line, and takes typed values out of them.

Nothing is guessed: every scalar is text until the caller says what it must be, so `no`, `1.0` and `07` stay as written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from strata_engine.errors import UsageError
from strata_engine.units import parse_bytes

T = TypeVar("T")
_Loader: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


@dataclass(frozen=True)
class Place:
    """Where a value stands, for messages."""

    file: Path
    line: int

    def fault(self, text: str, hint: str = "") -> UsageError:
        """An error that names file and line."""
        return UsageError(f"{self.file}, line {self.line}: {text}", hint, {"file": str(self.file), "line": self.line})


class Node:
    """One YAML value with its file."""

    def __init__(self, file: Path, node: yaml.Node) -> None:
        self.file, self._node = file, node

    @property
    def place(self) -> Place:
        """File and line (counted from 1)."""
        return Place(self.file, self._node.start_mark.line + 1)

    def text(self, what: str) -> str:
        """A scalar as written."""
        if not isinstance(self._node, yaml.ScalarNode):
            raise self.place.fault(f"{what} must be text")
        return self._node.value

    def flag(self, what: str) -> bool:
        """true or false."""
        value = self.text(what)
        if value.lower() not in ("true", "false"):
            raise self.place.fault(f"{what} must be true or false, not {value!r}")
        return value.lower() == "true"

    def integer(self, what: str) -> int:
        """A whole number, 0 or more."""
        value = self.text(what).replace("_", "")
        if not value.isascii() or not value.isdigit():
            raise self.place.fault(f"{what} must be a whole number, not {value!r}")
        return int(value)

    def number(self, what: str) -> float:
        """A finite number."""
        value = self.text(what)
        try:
            number = float(value)
        except ValueError as error:
            raise self.place.fault(f"{what} must be a number, not {value!r}") from error
        if number - number != 0:
            raise self.place.fault(f"{what} must be finite, not {value!r}")
        return number

    def size(self, what: str) -> int:
        """Bytes, as a plain number or with a unit."""
        try:
            return parse_bytes(self.text(what))
        except ValueError as error:
            raise self.place.fault(f"{what}: {error}") from error

    def items(self, what: str) -> list[Node]:
        """Elements of a list."""
        if not isinstance(self._node, yaml.SequenceNode):
            raise self.place.fault(f"{what} must be a list")
        return [Node(self.file, n) for n in self._node.value]

    def one_or_many(self, what: str, read: Callable[[Node, str], T]) -> tuple[T, ...]:
        """A list of values, or a single one."""
        nodes = self.items(what) if isinstance(self._node, yaml.SequenceNode) else [self]
        return tuple(read(n, what) for n in nodes)

    def pairs(self, what: str) -> Iterator[tuple[str, Node]]:
        """Keys and values of a mapping. A key given twice is an error."""
        if not isinstance(self._node, yaml.MappingNode):
            raise self.place.fault(f"{what} must be a mapping (key: value)")
        seen: dict[str, int] = {}
        for key_node, value_node in self._node.value:
            key = Node(self.file, key_node)
            name = key.text(f"a key of {what}")
            if name in seen:
                raise key.place.fault(f"{name} is given twice (first on line {seen[name]})")
            seen[name] = key.place.line
            yield name, Node(self.file, value_node)

    def is_mapping(self) -> bool:
        """Whether `pairs` will do."""
        return isinstance(self._node, yaml.MappingNode)


def read_nodes(file: Path) -> Node | None:
    """The document of a YAML file; None when it is empty. Raises UsageError with file and line."""
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: not UTF-8 text (byte {error.start})") from error
    try:
        document = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        raise _syntax_fault(file, text, error) from error
    except yaml.reader.ReaderError as error:
        raise UsageError(f"{file}: a character that YAML does not allow ({error.reason})") from error
    return None if document is None else Node(file, document)


def _syntax_fault(file: Path, text: str, error: yaml.MarkedYAMLError) -> UsageError:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 1
    lines = text.splitlines()
    indent = lines[line - 1][: len(lines[line - 1]) - len(lines[line - 1].lstrip())] if line <= len(lines) else ""
    if "\t" in indent:
        return Place(file, line).fault("a tab in the indentation", "indent with blanks")
    return Place(file, line).fault(f"not valid YAML: {error.problem or error.context}")
