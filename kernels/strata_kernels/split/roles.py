"""What each operation does with its arguments: data only. To add an operation that a split model may call: a line here.

home     weights, vectors, caches: they never move, and the operation runs where they live
reads    arrays that are read
writes   arrays that are written as a whole
updates  arrays that are read and written, or of which a part is written
All else (numbers, flags, rows, rotations) is handed on; arrays inside of it are taken on the side that runs.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Roles:
    """`order`: names of all parameters as in the Ops protocol. With `add` set, what is written is updated instead."""

    order: tuple[str, ...]
    home: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    updates: tuple[str, ...] = ()


def _roles(order: str, home: str = "", reads: str = "", writes: str = "", updates: str = "") -> Roles:
    return Roles(*(tuple(text.split()) for text in (order, home, reads, writes, updates)))


ROLES: dict[str, Roles] = {
    "embed": _roles("ids table out", "table", "ids", "out"),
    "rms_norm": _roles("x weight eps out", "weight", "x", "out"),
    "linear": _roles("x weights outs biases add", "weights biases", "x", "outs"),
    "silu_mul": _roles("gate up out", "", "gate up", "out"),
    "experts": _roles("x logits experts out add", "experts", "x logits", "out"),
    "add": _roles("a b out", "", "a b", "out"),
    "rope": _roles("x rows rotary", updates="x"),
    "kv_store": _roles("k v cache rows", "cache", "k v"),
    "attention": _roles("q cache rows scale out", "cache", "q", "out"),
    "short_conv": _roles("x weight past rows out silu dilation", "weight past", "x", "out"),
    "delta_rule": _roles("qkv a b delta state rows out pending", "delta state pending", "qkv a b", "out"),
    "gated_norm": _roles("x weight gate eps activation out", "weight", "x gate", "out"),
    "sigmoid_mul": _roles("x gate out", "", "x gate", "out"),
    "add_scaled": _roles("x gate out", "", "x gate", updates="out"),
    "gather": _roles("x index out", "", "x index", "out"),
    "argmax": _roles("logits out share", "", "logits", "out share"),
    "largest": _roles("logits ids values", "", "logits", "ids values"),
    "put_rows": _roles("x index column out add", "", "x index", updates="out"),
    "layer_norm": _roles("x weight bias eps out", "weight bias", "x", "out"),
    "gelu": _roles("x out tanh", "", "x", "out"),
    "block_conv": _roles("x change base side rows out", "base", "x change", "out"),
    "stream_norm": _roles("x weight eps out", "weight", "x", "out"),
    "silu_scaled": _roles("x scale out", "", "x", "out"),
    "stream_mix": _roles("x gate out", "", "x gate", "out"),
    "stream_add": _roles("y gate out", "", "y gate", updates="out"),
    "stream_gate": _roles("key query value out", "", "key query value", "out"),
    "ngram_rows": _roles("ids ngrams past rows out", "past", "ids", "out"),
    "shard_rows": _roles("index shards out", "shards", "index", "out"),
    "index_store": _roles("keys norm cache rows", "norm cache", "keys"),
    "index_select": _roles("q cache rows sparse chosen near", "cache", "q", "chosen near"),
    "sparse_attention": _roles("q chosen cache rows sparse out", "cache", "q chosen", updates="out"),
}
