"""Mixtures of experts: their numbers from config.json or GGUF keys, and how checkpoints store their matrices. No torch.

Three ways: a tensor for each expert and projection (published Hugging Face checkpoints), one tensor [E, rows, cols] a
projection (GGUF), and gate and up of each expert fused, gate rows first (transformers' own modules, newer GGUF files).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from strata_engine.errors import CorruptFile
from strata_engine.formats.base import WeightSource
from strata_engine.models.fields import Fields
from strata_engine.models.names import Wanted, stored_name

PROJECTIONS = ("gate", "up", "down")
COUNT_KEYS = ("num_experts", "num_local_experts")  # published configs, and those that transformers 5 writes


@dataclass(frozen=True)
class MixtureConfig:
    """`used` of `count` experts work on a row; `dense_layers` have a plain MLP instead. `inner_width` of one expert.

    `shared_width`: of an expert that works on every row, behind a gate of its own; 0: there is none.
    """

    count: int
    used: int
    inner_width: int
    renormalise: bool
    dense_layers: frozenset[int] = frozenset()
    shared_width: int = 0


def gguf_mixture(source: WeightSource, fields: Fields, prefix: str, layers: int) -> MixtureConfig | None:
    """From GGUF keys; None without experts. A layer without a router is dense. Raises CorruptFile."""
    count_key = f"{prefix}.expert_count"
    if not fields.has(count_key) or fields.integer(count_key, least=0) == 0:
        return None
    tensors = source.tensors()
    dense = frozenset(n for n in range(layers) if stored_name(f"{n}.router", "gguf") not in tensors)
    used = fields.integer(f"{prefix}.expert_used_count")
    inner = fields.integer(f"{prefix}.expert_feed_forward_length")
    renormalise = fields.flag(f"{prefix}.expert_weights_norm", True)
    shared = fields.integer(f"{prefix}.expert_shared_feed_forward_length", 0, least=0)
    return _checked(MixtureConfig(fields.integer(count_key), used, inner, renormalise, dense, shared), fields)


def hf_mixture(fields: Fields, layers: int, renormalise: bool = False) -> MixtureConfig | None:
    """From config.json; None without experts. `renormalise`: the family's default. Raises CorruptFile."""
    name = next((key for key in COUNT_KEYS if fields.has(key)), None)
    if name is None or fields.integer(name, least=0) == 0:
        return None
    step, only = fields.integer("decoder_sparse_step", 1), fields.integers("mlp_only_layers")
    dense = frozenset(n for n in range(layers) if n in only or (n + 1) % step)
    mixture = MixtureConfig(
        count=fields.integer(name),
        used=fields.integer("num_experts_per_tok"),
        inner_width=fields.integer("moe_intermediate_size"),
        renormalise=fields.flag("norm_topk_prob", renormalise),
        dense_layers=dense,
        shared_width=fields.integer("shared_expert_intermediate_size", 0, least=0),
    )
    return _checked(mixture, fields)


def _checked(mixture: MixtureConfig, fields: Fields) -> MixtureConfig:
    if mixture.used > mixture.count:
        raise CorruptFile(f"{fields.where}: {mixture.used} experts a token, but there are only {mixture.count}")
    return mixture


def mixture_tensors(layer: int, mixture: MixtureConfig, width: int, source: WeightSource) -> list[Wanted]:
    """The router and the experts of a layer, in the form that the checkpoint has."""
    count, inner = mixture.count, mixture.inner_width
    shapes = {"gate": (inner, width), "up": (inner, width), "down": (width, inner)}
    found = [Wanted(f"{layer}.router", (count, width), "matrix"), *_shared_tensors(layer, mixture, width)]

    def stacked(name: str) -> bool:
        return stored_name(f"{layer}.{name}", source.kind) in source.tensors()

    if stacked("gate_up_exps"):
        found.append(Wanted(f"{layer}.gate_up_exps", (count, 2 * inner, width), "experts"))
        return [*found, Wanted(f"{layer}.down_exps", (count, width, inner), "experts")]
    if source.kind == "gguf":
        return found + [Wanted(f"{layer}.{p}_exps", (count, *shapes[p]), "experts") for p in PROJECTIONS]
    return found + [Wanted(expert_name(layer, e, p), shapes[p], "matrix") for p in PROJECTIONS for e in range(count)]


def _shared_tensors(layer: int, mixture: MixtureConfig, width: int) -> list[Wanted]:
    inner = mixture.shared_width
    if not inner:
        return []
    shapes = {"router": (1, width), "gate": (inner, width), "up": (inner, width), "down": (width, inner)}
    return [Wanted(f"{layer}.shared_{name}", shape, "matrix") for name, shape in shapes.items()]


def expert_name(layer: int, expert: int, projection: str) -> str:
    """Our name of one expert's matrix. `projection`: gate | up | down."""
    return f"{layer}.expert.{expert}.{projection}"


def expert_names(want: Wanted) -> Iterator[tuple[str, int]]:
    """Our name and the rows of each matrix in a stacked tensor, in the order they are stored."""
    layer, _, kind = want.name.partition(".")
    count, rows, _ = want.shape
    projections = ("gate", "up") if kind == "gate_up_exps" else (kind.removesuffix("_exps"),)
    for expert in range(count):
        for projection in projections:
            yield expert_name(int(layer), expert, projection), rows // len(projections)


def expert_rows(want: Wanted, data: Any) -> Iterator[tuple[str, int, Any]]:
    """The matrices in a stacked tensor: our name, rows, bytes [rows, bytes of a row] as a view of `data` u8 [n]."""
    count, all_rows, _ = want.shape
    stored = data.reshape(count * all_rows, -1)
    start = 0
    for name, rows in expert_names(want):
        yield name, rows, stored[start : start + rows]
        start += rows
