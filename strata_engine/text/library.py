"""The `tokenizers` library speaks bare Exception, and panics; here both become CorruptFile. Nothing else is caught."""

from __future__ import annotations

from types import TracebackType

from strata_engine.errors import CorruptFile


class library_errors:  # noqa: N801 - used like a function
    """`with library_errors(what):` turns the library's own failures into CorruptFile("what: why")."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is Exception or (kind is not None and kind.__name__ == "PanicException"):
            raise CorruptFile(f"{self._what}: {error}") from error
