"""How quantised safetensors checkpoints spread one matrix over several tensors: the parts, and checks they share.

A layout belongs to one matrix [N out-features, K in-features] of a linear layer. It knows its parts by the last piece
of their names ("qweight", "scales"), their dtypes and shapes, and turns them into values. No torch at import.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]
FLOATS = ("F16", "BF16", "F32")


@dataclass(frozen=True)
class Part:
    """One stored tensor of a matrix. `types`: dtype names of the safetensors format that it may have."""

    name: str
    types: tuple[str, ...]
    required: bool = True


class Layout(Protocol):
    """One way to store a matrix, with the parameters of this matrix."""

    @property
    def label(self) -> str:
        """What listings call it, such as GPTQ_INT4."""
        ...

    @property
    def parts(self) -> tuple[Part, ...]:
        """The stored tensors, required ones and those that may be there."""
        ...

    @property
    def coding(self) -> tuple[str, int]:
        """How the matrix is held once loaded (own_block.type_for): I4, I8 or F8, and the columns that share a scale."""
        ...

    def stored(self, outs: int, ins: int) -> dict[str, tuple[str, Shape]]:
        """Part name -> (dtype, shape) of a matrix [N, K] as writers usually store it: what `measure` takes back."""
        ...

    def measure(self, shapes: Shapes, stated: Shape | None = None) -> tuple[int, int]:
        """(N, K) of the matrix whose parts have these shapes; `stated`: the shape the checkpoint itself gives.

        Raises ValueError naming the part that does not fit.
        """
        ...

    def unpack(self, parts: Mapping[str, Tensor]) -> Tensor:
        """f32 [N, K]. Raises ValueError when parts do not fit together or hold impossible numbers."""
        ...


class Scheme(Protocol):
    """What a checkpoint's quantization_config says: which layout each module has."""

    @property
    def label(self) -> str:
        """The method, as users know it."""
        ...

    @property
    def marks(self) -> frozenset[str]:
        """Part names that only a quantised module has."""
        ...

    def layout(self, module: str) -> Layout | None:
        """The layout of a module by its checkpoint name, None where the config leaves it unquantised."""
        ...


def shapes_of(parts: Mapping[str, Tensor]) -> dict[str, Shape]:
    """The shapes of loaded parts."""
    return {name: tuple(part.shape) for name, part in parts.items()}


def matrix(shapes: Shapes, name: str) -> tuple[int, int]:
    """The two dimensions of a part. Raises ValueError when it has not exactly two, or an empty one."""
    shape = shapes[name]
    if len(shape) != 2 or 0 in shape:
        raise ValueError(f"{name} has shape {list(shape)}, expected two dimensions")
    return shape[0], shape[1]


def expect(shapes: Shapes, name: str, *wanted: Shape) -> None:
    """Raises ValueError unless the part is absent or has one of these shapes."""
    if name in shapes and shapes[name] not in wanted:
        choices = " or ".join(str(list(shape)) for shape in wanted)
        raise ValueError(f"{name} has shape {list(shapes[name])}, expected {choices}")


def whole(number: int, divisor: int, what: str) -> int:
    """number / divisor. Raises ValueError when that is not whole."""
    if number % divisor:
        raise ValueError(f"{what} is {number}, not a multiple of {divisor}")
    return number // divisor


def group_count(cols: int, group_size: int) -> int:
    """Groups of a row of `cols`; group size -1 is one group. The last one may be shorter."""
    return 1 if group_size == -1 else -(-cols // group_size)
