"""Settings of an engine and of one request: frozen dataclasses, made once by a front end."""

from __future__ import annotations

from dataclasses import dataclass, field

from strata_engine.errors import UsageError

NO_PROJECTOR = "none"

# name -> type of keys, type of values
KV_TYPES = {
    "f16": ("f16", "f16"),
    "bf16": ("bf16", "bf16"),
    "f32": ("f32", "f32"),
    "int8": ("int8", "int8"),
    "f16/int8": ("f16", "int8"),
    "int8/f16": ("int8", "f16"),
    "f16/q4": ("f16", "q4"),
    "int8/q4": ("int8", "q4"),
}


def kv_pair(kv_type: str) -> tuple[str, str]:
    """Types of the stored keys and of the values. Raises UsageError with the list."""
    if kv_type not in KV_TYPES:
        raise UsageError(f"unknown KV type {kv_type!r}", hint=f"one of: {', '.join(KV_TYPES)}")
    return KV_TYPES[kv_type]


def kv_named(keys: str | None, values: str | None, otherwise: str) -> str:
    """The KV type with these types in place of those of `otherwise`. Raises UsageError with the list."""
    pair = kv_pair(otherwise)
    wanted = (keys or pair[0], values or pair[1])
    name = next((name for name, types in KV_TYPES.items() if types == wanted), None)
    if name is None:
        text = f"keys in {wanted[0]} with values in {wanted[1]} are not supported"
        raise UsageError(text, hint=f"keys/values, one of: {', '.join(KV_TYPES)}")
    return name


def kv_token_bytes(kv_type: str, rows: int, heads: int) -> int:
    """Bytes of a token with `rows` elements of keys and as many of values in `heads` kv heads. Raises UsageError."""
    return sum(_side_bytes(kind, rows, heads) for kind in kv_pair(kv_type))


def kv_scaled(kv_type: str) -> bool:
    """Whether keys or values have scales, so that their bytes depend on the heads. Raises UsageError."""
    return any(kind in _SCALED for kind in kv_pair(kv_type))


def _side_bytes(kind: str, rows: int, heads: int) -> int:
    if kind == "q4":  # blocks of 32 elements in 20 bytes, whole ones for each head
        return heads * (-(-rows // (32 * heads)) * 20)
    return rows * _ELEMENT_BYTES[kind] + heads * (4 if kind == "int8" else 0)


def require_unscaled(kv_type: str) -> None:
    """Raises UsageError where keys or values have scales, which block-sparse attention does not read."""
    if kv_scaled(kv_type):
        listed = ", ".join(name for name in KV_TYPES if not kv_scaled(name))
        text = f"block-sparse attention does not read keys and values of type {kv_type}"
        raise UsageError(text, hint=f"--kv-type, one of: {listed}")


_SCALED = ("int8", "q4")
_ELEMENT_BYTES = {"f16": 2, "bf16": 2, "f32": 4, "int8": 1}


_MOST_DRAFTS = 16  # of any drafter that is not told how many
SPEC_METHODS = ("none", "auto", "mtp", "dflash", "eagle3", "draft", "ngram", "suffix")


@dataclass(frozen=True)
class SpecConfig:
    """Speculative decoding. It never changes an answer, only how fast it comes.

    method    one of SPEC_METHODS; auto = every drafter that is there, chosen between by what pays
    draft     file or directory of the drafter's own weights
    n_max     most drafts of a sequence in one step; None = the drafter's own depth
    p_min     a chain of drafts ends where the drafter's top probability falls below it
    strict    a drafter that does not fit is an error; otherwise a notice, and plain decoding
    verify    run every answer again without drafts and say whether it is the same
    adaptive  choose the depth step by step from measured times; otherwise always n_max
    """

    method: str = "none"
    draft: str | None = None
    n_max: int | None = None
    p_min: float = 0.0
    strict: bool = False
    verify: bool = False
    adaptive: bool = True

    @property
    def most_drafts(self) -> int:
        """Most drafts of a sequence in one step, as memory is priced for before any drafter is open."""
        if self.method == "none":
            return 0
        return _MOST_DRAFTS if self.n_max is None else self.n_max


@dataclass(frozen=True)
class EngineConfig:
    """How one model is loaded.

    context_tokens   longest sequence; None = the model's own limit, lowered to what memory allows (and reported)
    kv_type          one of KV_TYPES: f16, int8, f16/q4, ... (keys/values where they differ)
    kernels          auto | native | reference   (reference = plain torch, f32)
    mode             exact | fast                (exact: a row's result does not depend on its batch mates)
    threads          0 = one per physical core we may use
    max_sequences    sequences in one batch; more wait
    max_queue        waiting sequences before QueueFull
    batch_rows       most rows in one forward (prefill chunk)
    page_tokens      tokens in one KV page
    projector        file of the image projector; None = the one beside the weights, if any; NO_PROJECTOR = none
    prefix_cache     do sequences share what they begin with, and is it kept after they end?
    quantize_rest    none | int8 | int4: what matrices become that a checkpoint left in floats
    spec             speculative decoding
    gpu_layers       layers on a GPU, counted from the last; None = as many as fit, more than there are = all
    cpu_experts      of these the first so many keep their experts with the processor; None = as few as fit
    """

    context_tokens: int | None = None
    kv_type: str = "f16"
    kernels: str = "auto"
    mode: str = "exact"
    threads: int = 0
    max_sequences: int = 16
    max_queue: int = 256
    batch_rows: int = 512
    page_tokens: int = 32
    prefix_cache: bool = True
    quantize_rest: str = "none"
    spec: SpecConfig = SpecConfig()
    device: str = "auto"
    gpu_layers: int | None = None
    cpu_experts: int | None = None
    mmap: bool = True
    projector: str | None = None
    chat_template: str | None = None  # template text that replaces the file's own
    defaults: dict[str, float | int | bool | str] = field(default_factory=dict)  # catalog sampling defaults


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen and when to stop. None of the lists may be mutated.

    temperature 0 = argmax, lowest id on a tie. `max_tokens` None = until stop or the context is full.
    `penalty_last_n`: window of the repeat penalty over prompt and answer; presence and frequency penalties count
    generated tokens only. `logprobs` None = off, else the number of alternatives (0..20). `speculate` False: no drafts
    for this sequence, whatever the engine could do; its tokens are the same either way.
    """

    max_tokens: int | None = None
    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    penalty_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    include_stop: bool = False
    speculate: bool = True
