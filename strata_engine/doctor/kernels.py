"""Checks of the native CPU library: is it there, does it match this program, does it compute what torch computes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from strata_engine.doctor.check import FAIL, OK, WARN, Check
from strata_kernels.binding import ABI, KernelsUnavailable, library_path, load

if TYPE_CHECKING:
    import torch

_REBUILD = "install a C++ compiler, then install llmrun again (pip install --force-reinstall --no-deps)"
# Products of int8 activations differ from float ones by about half a percent of the largest value.
_MOST_ERROR = 0.02
_ROWS, _INNER, _OUTER = 3, 256, 48


@dataclass(frozen=True)
class KernelState:
    """What is known without torch. `build`: the fastest set of kernels this processor can run; `fault` "" = usable."""

    library: Path | None
    abi: int | None = None
    build: str = ""
    fault: str = ""

    @property
    def text(self) -> str:
        """One line for people."""
        if self.library is None:
            return "not built; the slower torch operations are used"
        if self.fault:
            return f"not usable: {self.fault}; the slower torch operations are used"
        return f"{self.library.name}, interface {self.abi}, {self.build} build"


def state() -> KernelState:
    """Load the library and ask what it can do here."""
    path = library_path()
    if not path.exists():
        return KernelState(None)
    try:
        library = load(path)
    except KernelsUnavailable as error:
        return KernelState(path, fault=str(error))
    usable = [name for name, reason in library.builds if not reason]
    if not usable:
        return KernelState(path, ABI, fault="; ".join(f"{name}: {reason}" for name, reason in library.builds))
    return KernelState(path, ABI, usable[-1])


def check_all() -> list[Check]:
    """The library, then small computations with it when it can be used."""
    found = state()
    if found.library is None:
        return [Check("kernels", WARN, found.text, _REBUILD, device=True)]
    if found.fault:
        return [Check("kernels", FAIL, found.text, _REBUILD, device=True)]
    return [Check("kernels", OK, found.text), self_test()]


def self_test() -> Check:
    """The same products by the native kernels and by plain torch, for float and for quantised weights."""
    try:
        worst = max(_error(kind) for kind in ("F32", "BF16", "Q8_0"))
    except RuntimeError as error:
        return Check("self-test", FAIL, f"the kernels do not run: {error}", _REBUILD, device=True)
    if not worst <= _MOST_ERROR:  # NaN fails too
        text = f"native results differ from torch by {worst:.1%} of the largest value"
        return Check("self-test", FAIL, text, "use --kernels reference, and report this processor", device=True)
    return Check("self-test", OK, f"native results equal torch within {worst:.2%}")


def _error(kind: str) -> float:
    """Largest difference of the two products, as a share of the largest value."""
    import torch

    from strata_backends.base import Profile
    from strata_backends.cpu import CpuBackend
    from strata_kernels.ops import Weight

    generator = torch.Generator().manual_seed(7)
    x = torch.randn(_ROWS, _INNER, generator=generator)
    weight = Weight(kind, _OUTER, _INNER, _stored(kind, torch.randn(_OUTER, _INNER, generator=generator)))
    results: list[torch.Tensor] = []
    for kernels in ("native", "reference"):
        ops = CpuBackend().ops(Profile(kernels=kernels, threads=1)).ops
        out = torch.zeros(_ROWS, _OUTER)
        packed = ops.pack(weight)
        ops.begin()
        ops.linear(x, [packed], [out])
        ops.end().run()
        results.append(out)
    native, reference = results
    return float((native - reference).abs().max() / reference.abs().max())


def _stored(kind: str, values: torch.Tensor) -> torch.Tensor:
    """`values` [N, K] as the bytes of a weight file, u8 [N, bytes of a row]."""
    import torch

    if kind == "F32":
        return values.contiguous().view(torch.uint8)
    if kind == "BF16":
        return values.to(torch.bfloat16).contiguous().view(torch.uint8)
    blocks = values.reshape(values.shape[0], -1, 32)  # Q8_0: an f16 scale, then 32 signed bytes
    scale = (blocks.abs().amax(-1, keepdim=True) / 127).to(torch.float16)
    codes = (blocks / scale.float()).round().clamp(-127, 127).to(torch.int8)
    return torch.cat([scale.view(torch.uint8), codes.view(torch.uint8)], dim=-1).reshape(values.shape[0], -1)
