"""Arrays of a split model: memory on both sides, and on which of them it is up to date."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

NEAR, FAR = "near", "far"  # the device, the processor


@dataclass(eq=False)
class Root:
    """One piece of memory on both sides. `valid`: where it holds what was last written; empty: nothing was.

    `kept`: a buffer that host and device share: `far` is the device's mirror, and copies are made around the device's
    steps (gpu/mirrors.py), so both sides count as up to date.
    """

    near: Any
    far: Any
    valid: set[str] = field(default_factory=set)
    kept: bool = False


@dataclass(frozen=True, eq=False)
class Place:
    """A view of a Root: what the engine sees as an array. `near`, `far`: the view's memory on each side."""

    root: Root
    near: Any
    far: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """As an array."""
        return tuple(self.far.shape)

    @property
    def nbytes(self) -> int:
        """As an array."""
        return self.far.nbytes

    @property
    def whole(self) -> bool:
        """Does it show all of its root?"""
        return self.far.nbytes == self.root.far.nbytes

    def on(self, side: str) -> Any:
        """Its memory there."""
        return self.near if side == NEAR else self.far

    def reshape(self, *shape: Any) -> Place:
        """As an array."""
        return Place(self.root, self.near.reshape(*shape), self.far.reshape(*shape))

    def __getitem__(self, key: Any, /) -> Place:
        return Place(self.root, self.near[key], self.far[key])

    def __setitem__(self, key: Any, value: Any, /) -> None:
        """Both sides take it."""
        self.near[key] = value
        self.far[key] = value


def make_place(near: Any, far: Any, *valid: str) -> Place:
    """A place over the whole of two arrays of one shape."""
    return Place(Root(near, far, set(valid)), near, far)


def side_of(thing: Any, near_type: type) -> str | None:
    """Where weights, vectors or caches live; None where nothing in it lives anywhere."""
    if thing is None or isinstance(thing, (int, float, str, Place)):
        return None
    if isinstance(thing, near_type):
        return NEAR
    if isinstance(thing, (list, tuple)):
        return next((side for one in thing if (side := side_of(one, near_type)) is not None), None)
    if is_dataclass(thing):
        inner = (getattr(thing, one.name) for one in fields(thing))
        return next((side for one in inner if (side := side_of(one, near_type)) is not None), None)
    return FAR if hasattr(thing, "shape") else None


def places_in(thing: Any) -> list[Place]:
    """All places in an argument."""
    if isinstance(thing, Place):
        return [thing]
    if isinstance(thing, (list, tuple)):
        return [place for one in thing for place in places_in(one)]
    if is_dataclass(thing) and not isinstance(thing, type):
        return [place for one in fields(thing) for place in places_in(getattr(thing, one.name))]
    return []


def taken(thing: Any, side: str) -> Any:
    """An argument with the memory of one side in the place of each Place."""
    if isinstance(thing, Place):
        return thing.on(side)
    if isinstance(thing, (list, tuple)):
        return type(thing)(taken(one, side) for one in thing)
    if is_dataclass(thing) and not isinstance(thing, type) and places_in(thing):
        return replace(thing, **{f.name: taken(getattr(thing, f.name), side) for f in fields(thing) if f.init})
    return thing
