"""SplitOps: the Ops protocol over a device (near) and the processor (far), for models that do not fit the device.

An operation runs where its weights or its cache live; one without runs where its inputs are. What it reads is brought
there if it is not, once until it is written again. With `add` into an array of the other side the sum is made there: of
experts that live with the processor only a row's input and its result travel, never the residual stream.
A recorded step is a list of the sides' own steps and of the copies between them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakSet

from numpy.typing import NDArray

from strata_kernels.gpu.arrays import DeviceArray
from strata_kernels.ops import Ops, Step
from strata_kernels.split.places import FAR, NEAR, Place, Root, make_place, places_in, side_of, taken
from strata_kernels.split.roles import ROLES, Roles
from strata_kernels.split.steps import Copy, SplitStep

Side = Callable[[str], str]  # our name of a tensor -> NEAR or FAR


class SplitOps:
    """`near`: a device's Ops; `far`: the processor's. `place`: where a tensor lives; `layer_sides`: a layer's cache."""

    def __init__(self, near: Any, far: Ops, place: Side, layer_sides: tuple[str, ...]) -> None:
        self.near, self.far = near, far
        self._place, self._layer_sides = place, layer_sides
        self._lasting: WeakSet[Root] = WeakSet()
        self._parts: list[Step] | None = None  # of the step that is being recorded
        self._current: str | None = None  # the side whose ops are being recorded
        self._planning = False

    @property
    def name(self) -> str:
        """The device's: what it multiplies, the processor does too."""
        return self.near.name

    # ---- where things go

    def side(self, name: str) -> Ops:
        """Whose Ops take a tensor of this name, to pack it or keep it."""
        return self.near if self._place(name) == NEAR else self.far

    def zeros_of(self, layer: int) -> Callable[..., Any]:
        """`zeros` of the side on which a layer keeps its memory; what comes behind the model's layers is near."""
        sides = self._layer_sides
        return (self.far if layer < len(sides) and sides[layer] == FAR else self.near).zeros

    # ---- arrays

    def take(self, *shape: int, dtype: str = "f32") -> Place:
        """As Ops, on both sides."""
        return make_place(self.near.take(*shape, dtype=dtype), self.far.take(*shape, dtype=dtype))

    def zeros(self, *shape: int, dtype: str = "f32") -> Place:
        """As Ops, on both sides: buffers. What layers keep is made by `zeros_of`."""
        place = make_place(self.near.zeros(*shape, dtype=dtype), self.far.zeros(*shape, dtype=dtype), NEAR, FAR)
        self._lasting.add(place.root)
        return place

    def host(self, array: Place, read: bool = False) -> NDArray[Any]:
        """As Ops."""
        self.near.mirror(array.root.near, array.root.far, read)
        array.root.kept = True
        return array.far

    def constant(self, values: NDArray[Any]) -> Place:
        """As Ops, on both sides. Weights and vectors of a model are made by `side(name)` instead."""
        return make_place(self.near.constant(values), self.far.constant(values), NEAR, FAR)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """As Ops."""
        with self.near.scope(), self.far.scope():
            yield

    # ---- steps

    def begin(self) -> None:
        """As Ops. Raises RuntimeError inside a recording."""
        if self._parts is not None:
            raise RuntimeError("begin: a step is being recorded already")
        self._parts = []
        for root in self._lasting:  # between steps they are up to date on the device
            root.valid = {NEAR}

    def end(self) -> SplitStep:
        """As Ops. Raises RuntimeError outside a recording."""
        if self._parts is None:
            raise RuntimeError("end: no step is being recorded")
        for root in self._lasting:
            if not root.kept:
                self._bring(root, NEAR)
        self._turn_to(None)
        parts, self._parts = self._parts, None
        return SplitStep(parts)

    @property
    def separate(self) -> bool:
        """Are logits found on the device?"""
        return self._place("head") == NEAR

    @contextmanager
    def planning(self) -> Iterator[Any]:
        """As GpuOps: collects what the device would launch; the processor computes nothing meanwhile."""
        self._planning = True
        try:
            with self.near.planning() as variants:
                yield variants
        finally:
            self._planning = False

    def build(self, variants: Collection[Any]) -> str:
        """As GpuOps."""
        return self.near.build(variants)

    # ---- operations

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Each operation of ROLES."""
        if name not in ROLES:
            raise AttributeError(f"{type(self).__name__} has no {name}")
        return partial(self._call, name)

    def _call(self, name: str, *args: Any, **kwargs: Any) -> None:
        roles = ROLES[name]
        given = dict(zip(roles.order, args, strict=False)) | kwargs
        reads, writes, updates = (
            [place for one in names if one in given for place in places_in(given[one])]
            for names in (roles.reads, roles.writes, roles.updates)
        )
        if given.get("add"):
            writes, updates = [], [*writes, *updates]
        side = self._home(roles, given) or _meeting(updates + reads)
        if given.get("add") and "out" not in roles.updates and not _ready(updates, side):
            return self._add_there(name, given, updates)
        for place in reads + updates + [place for place in writes if not place.whole]:
            self._bring(place.root, side)
        ops = self._turn_to(side)
        if not (self._planning and side == FAR):
            getattr(ops, name)(**{one: taken(value, side) for one, value in given.items()})
        for place in writes + updates:
            place.root.valid = {side}

    def _home(self, roles: Roles, given: dict[str, Any]) -> str | None:
        return side_of([given.get(one) for one in roles.home], DeviceArray)

    def _add_there(self, name: str, given: dict[str, Any], outs: list[Place]) -> None:
        """Compute aside, then add where the sums are."""
        with self.scope():
            parts = [self.take(*place.shape) for place in outs]
            plain = {"outs": parts} if "outs" in given else {"out": parts[0]}
            self._call(name, **{**given, **plain, "add": False})
            for place, part in zip(outs, parts, strict=True):
                self._call("add", place, part, place)

    def _bring(self, root: Root, side: str) -> None:
        """See that a piece is up to date on a side."""
        if root.kept or not root.valid or side in root.valid:
            return
        root.valid.add(side)
        if self._planning:
            return
        copy = Copy(root, side)
        if self._parts is None:
            return copy.run()
        self._turn_to(None)
        self._parts.append(copy)

    def _turn_to(self, side: str | None) -> Any:
        """The Ops of a side, recording; the other side's recording ends."""
        ops = self.far if side == FAR else self.near
        if self._parts is None or self._planning or side == self._current:
            return ops
        if self._current is not None:
            self._parts.append((self.far if self._current == FAR else self.near).end())
        self._current = side
        if side is not None:
            ops.begin()
        return ops


def _ready(places: list[Place], side: str) -> bool:
    return all(place.root.kept or not place.root.valid or side in place.root.valid for place in places)


def _meeting(places: list[Place]) -> str:
    """Where operations without weights run: where all inputs are, else where the first of them is."""
    moving = [place.root.valid for place in places if not place.root.kept and place.root.valid]
    common = set.intersection(*moving) if moving else {NEAR}
    found = common or moving[0]
    return NEAR if NEAR in found else FAR
