"""Numbers of gated delta nets: recurrent layers, heads and widths, from config.json or GGUF keys. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from strata_engine.errors import CorruptFile
from strata_engine.models.fields import Fields

_INTERVAL = 4  # every so many layers one attends, unless the checkpoint says otherwise
_ACTIVATIONS = {"silu": "silu", "swish": "silu", "sigmoid": "sigmoid"}


@dataclass(frozen=True)
class DeltaConfig:
    """`layers` are recurrent, the others attend. `tiled`: see ops.DeltaRule. `activation` of the output gate."""

    kernel: int
    key_heads: int
    value_heads: int
    key_width: int
    value_width: int
    layers: frozenset[int]
    activation: str = "silu"
    tiled: bool = False

    @property
    def keys(self) -> int:
        """Elements of a row's keys, and of its queries."""
        return self.key_heads * self.key_width

    @property
    def values(self) -> int:
        """Elements of a row's values."""
        return self.value_heads * self.value_width

    @property
    def channels(self) -> int:
        """Channels of the short convolution: queries, keys and values."""
        return 2 * self.keys + self.values


def hf_delta(fields: Fields, layers: int) -> DeltaConfig:
    """From config.json. Raises CorruptFile."""
    kinds = fields.texts("layer_types")
    if kinds and len(kinds) != layers:
        raise CorruptFile(f"{fields.where}: layer_types names {len(kinds)} layers, num_hidden_layers says {layers}")
    if kinds:
        recurrent = frozenset(n for n, kind in enumerate(kinds) if kind == "linear_attention")
    else:
        recurrent = _by_interval(layers, fields.integer("full_attention_interval", _INTERVAL))
    gate = fields.text("output_gate_type", "silu")
    if gate not in _ACTIVATIONS:
        raise CorruptFile(f"{fields.where}: output_gate_type {gate!r} is not one of {', '.join(_ACTIVATIONS)}")
    return _checked(
        DeltaConfig(
            kernel=fields.integer("linear_conv_kernel_dim", 4, least=2),
            key_heads=fields.integer("linear_num_key_heads"),
            value_heads=fields.integer("linear_num_value_heads"),
            key_width=fields.integer("linear_key_head_dim", 128),
            value_width=fields.integer("linear_value_head_dim", 128),
            layers=recurrent,
            activation=_ACTIVATIONS[gate],
        ),
        fields,
    )


def gguf_delta(fields: Fields, prefix: str, layers: int, tiled: bool, activation: str = "silu") -> DeltaConfig:
    """From GGUF keys; `layers` without draft blocks. Raises CorruptFile."""
    flags = fields.flags(f"{prefix}.attention.recurrent_layers")
    if flags:
        recurrent = frozenset(n for n, flag in enumerate(flags[:layers]) if flag)
    else:
        recurrent = _by_interval(layers, fields.integer(f"{prefix}.full_attention_interval", _INTERVAL))
    heads = fields.integer(f"{prefix}.ssm.time_step_rank")
    inner = fields.integer(f"{prefix}.ssm.inner_size")
    if inner % heads:
        raise CorruptFile(f"{fields.where}: {prefix}.ssm.inner_size {inner} is no multiple of {heads} value heads")
    return _checked(
        DeltaConfig(
            kernel=fields.integer(f"{prefix}.ssm.conv_kernel", least=2),
            key_heads=fields.integer(f"{prefix}.ssm.group_count"),
            value_heads=heads,
            key_width=fields.integer(f"{prefix}.ssm.state_size"),
            value_width=inner // heads,
            layers=recurrent,
            activation=activation,
            tiled=tiled,
        ),
        fields,
    )


def _by_interval(layers: int, interval: int) -> frozenset[int]:
    return frozenset(n for n in range(layers) if (n + 1) % interval)


def _checked(delta: DeltaConfig, fields: Fields) -> DeltaConfig:
    if delta.value_heads % delta.key_heads:
        text = f"{delta.value_heads} value heads are not a multiple of {delta.key_heads} key heads"
        raise CorruptFile(f"{fields.where}: {text}")
    return delta
