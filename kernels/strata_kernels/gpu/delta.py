"""Recurrent layers: short convolution, gated delta rule, gated norm, sigmoid gates; the convolution over a block.

A device cannot raise: rows whose sequence or slot is not there, or whose numbers of certain rows cannot be, give NaN,
and nothing outside is read or written.
"""

from __future__ import annotations

from strata_kernels.gpu.arrays import DeviceArray
from strata_kernels.gpu.core import FEW_ROWS, Core
from strata_kernels.gpu.dense import ELEMENTS, power
from strata_kernels.ops import Array, DeltaRule, Rows

CHANNELS = 256  # of a program of a convolution
VALUE_COLUMNS = 16  # of a head that a program of the delta rule holds: enough programs for one row, few registers
SCAN = 1024  # sequence numbers looked at together

_ACTIVATIONS = ("silu", "sigmoid")


class DeltaOps(Core):
    """One group of GpuOps."""

    def short_conv(
        self, x: Array, weight: Array, past: Array, rows: Rows, out: Array, silu: bool = True, dilation: int = 1
    ) -> None:
        """As Ops. Few rows are one launch; many move the ring on in a second one."""
        (count, channels), (_, kernel) = x.shape, weight.shape
        ring = past.shape[1]
        fits = weight.shape[0] == channels == past.shape[2] and ring >= (kernel - 1) * dilation
        if not fits or dilation < 1 or not kernel or tuple(out.shape) != tuple(x.shape):
            shapes = f"x {tuple(x.shape)}, weight {tuple(weight.shape)}, past {tuple(past.shape)}, dilation {dilation}"
            raise ValueError(f"short_conv of unfitting shapes: {shapes}")
        where, numbers = self._where(rows, count, past.shape[0])
        grid, block = _columns(count, channels)
        shape = {"CHANNELS": channels, "RING": ring, "BLOCK": block}
        taps = {"KERNEL": kernel, "DILATION": dilation, "SILU": silu}
        inputs = (x, weight, past, *where, out, *numbers)
        if count <= FEW_ROWS:
            self._run("short_conv", grid, inputs, SCAN=FEW_ROWS, **shape, **taps)
            return
        self._run("short_conv_rows", grid, inputs, **shape, **taps)
        if ring:
            self._run("short_conv_keep", grid, (x, past, *where, *numbers), **shape)

    def delta_rule(
        self,
        qkv: Array,
        a: Array,
        b: Array,
        delta: DeltaRule,
        state: Array,
        rows: Rows,
        out: Array,
        pending: Array | None = None,
    ) -> None:
        """As Ops. A slot holds each head's matrix turned: [Dv, Dk]."""
        _check_rule((qkv, a, b), delta, state, out)
        count, sequences = qkv.shape[0], 0 if rows.states is None else rows.states.shape[0]
        where, numbers = self._where(rows, count, state.shape[0])
        most, (place, keep, fold) = _waiting(rows, delta, state, pending)
        few = count <= FEW_ROWS
        scan = FEW_ROWS if few else power(count, SCAN)
        grid = (count if few else sequences, delta.value_heads, -(-delta.value_width // VALUE_COLUMNS))
        self._run(
            "delta_rule",
            grid if count else (0,),
            (qkv, a, b, delta.decay, delta.dt_bias, state, place, *where, keep, fold, out, *numbers)
            + (float(delta.key_width) ** -0.5,),
            KEY_HEADS=delta.key_heads,
            VALUE_HEADS=delta.value_heads,
            KEY_WIDTH=delta.key_width,
            VALUE_WIDTH=delta.value_width,
            TILED=delta.tiled,
            MOST=most,
            BY_ROW=few,
            SCAN=scan,
            KEYS=power(delta.key_width, 1 << 20),
            VALUES=VALUE_COLUMNS,
        )
        if most:
            keys = delta.key_heads * delta.key_width
            block = power(delta.pending_width, ELEMENTS)
            self._run(
                "delta_wait",
                (count, -(-delta.pending_width // block)),
                (qkv, a, b, place, *where, keep, fold, *numbers),
                SKIP=keys,
                LINE=delta.channels - keys,
                HEADS=delta.value_heads,
                MOST=most,
                SCAN=scan,
                BLOCK=block,
            )

    def gated_norm(self, x: Array, weight: Array, gate: Array, eps: float, activation: str, out: Array) -> None:
        """As Ops. Raises ValueError for an activation that is not there."""
        if activation not in _ACTIVATIONS:
            raise ValueError(f"gated_norm: activation {activation!r} is not one of {', '.join(_ACTIVATIONS)}")
        width = x.shape[-1]
        self._run(
            "gated_norm",
            (self._array(x).count // width,),
            (x, weight, gate, out, float(eps)),
            WIDTH=width,
            BLOCK=power(width, ELEMENTS),
            SILU=activation == "silu",
        )

    def sigmoid_mul(self, x: Array, gate: Array, out: Array) -> None:
        """As Ops."""
        count = self._array(out).count
        self._run("sigmoid_mul", (-(-count // ELEMENTS),), (x, gate, out, count), BLOCK=ELEMENTS)

    def add_scaled(self, x: Array, gate: Array, out: Array) -> None:
        """As Ops."""
        rows, width = x.shape
        block = power(width, ELEMENTS)
        self._run("add_scaled", (rows, -(-width // block)), (x, gate, out), WIDTH=width, BLOCK=block)

    def block_conv(self, x: Array, change: Array, base: Array, side: int, rows: Rows, out: Array) -> None:
        """As Ops. Raises ValueError on unfitting shapes."""
        (count, width), taps = x.shape, base.shape[1]
        groups = change.shape[1] // (2 * taps)
        fits = tuple(base.shape) == (2, taps, width) and change.shape[0] == count
        if not fits or not groups or change.shape[1] % (2 * taps) or width % groups:
            changes = f"{change.shape[1]} changes and weights {list(base.shape)}"
            raise ValueError(f"block_conv: {changes} for {width} channels")
        grid, block = _columns(count, width)
        values = (x, change, base, rows.sequences, out, side)
        self._run("block_conv", grid, values, WIDTH=width, TAPS=taps, GROUPS=groups, BLOCK=block)

    def _where(self, rows: Rows, count: int, slots: int) -> tuple[tuple[DeviceArray, ...], tuple[int, int, int]]:
        """Positions, sequences and slots as a kernel takes them; numbers of rows, sequences and slots."""
        if rows.states is None:
            raise ValueError("a recurrent op needs the state slots of the sequences")
        where = tuple(self._array(part) for part in (rows.positions, rows.sequences, rows.states))
        return where, (count, rows.states.shape[0], slots)


def _columns(rows: int, width: int) -> tuple[tuple[int, int], int]:
    """Grid over rows and blocks of columns, and the size of a block."""
    block = power(width, CHANNELS)
    return (rows, -(-width // block)), block


def _waiting(rows: Rows, delta: DeltaRule, state: Array, pending: Array | None) -> tuple[int, tuple[Array, ...]]:
    """How many rows may be uncertain, where they wait, `keep` and `fold`; 0 and stand-ins where all are certain."""
    if rows.keep is None and rows.fold is None:
        return 0, (state, rows.positions, rows.positions)
    if pending is None or rows.keep is None or rows.fold is None:
        raise ValueError("delta_rule: rows that are not certain need keep, fold and a place to wait")
    if pending.shape[0] != state.shape[0] or pending.shape[2] != delta.pending_width:
        raise ValueError(f"delta_rule of unfitting shapes: pending {tuple(pending.shape)}")
    return pending.shape[1], (pending, rows.keep, rows.fold)


def _check_rule(inputs: tuple[Array, Array, Array], delta: DeltaRule, state: Array, out: Array) -> None:
    """Raises ValueError on unfitting shapes; `inputs`: qkv, a, b."""
    qkv, a, b = inputs
    delta.check()
    count, heads = qkv.shape[0], delta.value_heads
    fits = tuple(qkv.shape) == (count, delta.channels) and tuple(a.shape) == tuple(b.shape) == (count, heads)
    fits = fits and tuple(out.shape) == (count, heads, delta.value_width)
    if not fits or tuple(state.shape)[1:] != (heads, delta.key_width, delta.value_width):
        shapes = f"qkv {tuple(qkv.shape)}, a {tuple(a.shape)}, b {tuple(b.shape)}, state {tuple(state.shape)}"
        raise ValueError(f"delta_rule of unfitting shapes: {shapes}")
