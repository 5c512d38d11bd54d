"""The numbers of an EAGLE-3 drafter, read from its config.json. No torch.

Two ways of counting layers are in use. EAGLE's own code takes the residual stream where it *enters* layers 2, L // 2
and L - 3; counted as we do, *after* a layer from 0, these are 1, L // 2 - 1 and L - 4. A config that names the layers
(`eagle_aux_hidden_state_layer_ids`) is taken to count as we do, as SGLang has it: a head for a model of 94 layers is
quoted with 1, 46, 90. The speculators format counts entries there; it is not read. Source: arXiv 2503.01840, the public
code of EAGLE and SGLang, notes/speculative.md 1.4 and 4.4.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from strata_engine.errors import CorruptFile, NotFound, UsageError
from strata_engine.formats.base import WeightSource
from strata_engine.models.config import ModelConfig, RopeConfig, hf_scaling
from strata_engine.models.fields import Fields

OWN, LAYER_IDS, MIDDLE = "eagle_config", "eagle_aux_hidden_state_layer_ids", "midlayer."
TAPS = 3
_PLAIN: tuple[tuple[str, object], ...] = (  # what other values of these keys mean is not built
    ("num_hidden_layers", 1),
    ("attention_bias", False),
    ("mlp_bias", False),
    ("bias", False),
    ("norm_before_residual", False),
    ("norm_before_fc", False),
    ("parallel_drafting", False),
    ("logit_scale", 1.0),
)


@dataclass(frozen=True)
class Eagle3Config:
    """A drafter for a given target. Widths in elements.

    `taps`: three layers of the target (from 0, ascending) whose residual after them is looked at. `norm_output`: the
    state that goes on to the next guess is the one after the last norm, as of few drafters; else the one before it.
    """

    where: str
    vocab_size: int
    draft_vocab_size: int
    width: int
    inner_width: int
    heads: int
    kv_heads: int
    head_width: int
    norm_eps: float
    rope: RopeConfig
    taps: tuple[int, ...]
    taps_from: str
    norm_output: bool
    tied: bool


def plain_name(name: str) -> str:
    """A tensor's name without the prefix, its layer spelled as EAGLE does."""
    return name.removeprefix("model.").replace("layers.0.", MIDDLE)


def read_eagle3(source: WeightSource, target: ModelConfig) -> Eagle3Config:
    """The config of an open drafter, checked against its target.

    Raises NotFound (it is something else), UsageError naming both values (does not fit, or not supported), CorruptFile.
    """
    where = str(source.paths[0].parent if source.paths else source.kind)
    top = Fields(source.metadata().get("config") or {}, f"{where}/config.json")
    own = top.mapping(OWN)
    _require_eagle3(where, top, source)
    _refuse(top, own)
    width, vocab_size = top.integer("hidden_size"), top.integer("vocab_size")
    _require_same(where, "hidden_size", width, target.width)
    _require_same(where, "vocab_size", vocab_size, target.vocab_size)
    seen = top.integer("target_hidden_size", width)
    _require_same(where, "target_hidden_size", seen, target.width)
    heads = top.integer("num_attention_heads")
    head_width = top.integer("head_dim", max(1, width // heads))
    taps, taps_from = _taps(where, top, own, target.layers)
    config = Eagle3Config(
        where=where,
        vocab_size=vocab_size,
        draft_vocab_size=top.integer("draft_vocab_size", vocab_size),
        width=width,
        inner_width=top.integer("intermediate_size"),
        heads=heads,
        kv_heads=top.integer("num_key_value_heads", heads),
        head_width=head_width,
        norm_eps=top.number("rms_norm_eps"),
        rope=_rope(top, head_width),
        taps=taps,
        taps_from=taps_from,
        norm_output=own.flag("norm_output", top.flag("norm_output", False)),
        tied=top.flag("tie_word_embeddings", False),
    )
    if config.heads % config.kv_heads:
        raise CorruptFile(f"{where}: {config.heads} heads are no multiple of {config.kv_heads} kv heads")
    if config.draft_vocab_size > vocab_size:
        text = f"{where}: draft_vocab_size is {config.draft_vocab_size}, vocab_size only {vocab_size}"
        raise CorruptFile(text, details={"key": "draft_vocab_size"})
    return config


def _require_eagle3(where: str, top: Fields, source: WeightSource) -> None:
    """Is it one at all? By its name, its keys or its tensors: any will do, so that what is missing is said by name."""
    named = any("eagle3" in name.lower() for name in top.texts("architectures"))
    keys = top.has(OWN) or top.has("draft_vocab_size")
    tensors = any(plain_name(name).startswith(MIDDLE + "hidden_norm") for name in source.tensors())
    if source.kind != "safetensors" or not (named or keys or tensors):
        what = f"architectures {top.texts('architectures')}" if source.kind == "safetensors" else source.kind
        text = f"{where} is not an EAGLE-3 drafter in safetensors: {what}"
        raise NotFound(text, hint="name the drafter's Hugging Face directory with --draft")


def _refuse(top: Fields, own: Fields) -> None:
    if top.has("speculators_model_type"):
        raise UsageError(
            f"{top.where}: drafters in the speculators format are not supported",
            hint="take the drafter in EAGLE's own layout (midlayer.* or layers.0.* beside fc.weight)",
        )
    activation = top.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UsageError(f"{top.where}: activation {activation!r} is not supported", hint="supported: silu")
    for key, plain in _PLAIN:
        if top.has(key) and top.value(key) != plain:
            text = f"{top.where}: {key} is {top.value(key)!r}; only {plain!r} is supported"
            raise UsageError(text, details={"key": key})
    if not own.flag("use_aux_hidden_state", True):
        raise UsageError(f"{own.where}: use_aux_hidden_state is False; only True is supported")


def _require_same(where: str, key: str, ours: int, theirs: int) -> None:
    if ours != theirs:
        raise _unfit(where, f"{key} is {ours}, the model's is {theirs}", key, ours, theirs)


def _unfit(where: str, text: str, key: str, ours: object, theirs: int) -> UsageError:
    return UsageError(
        f"{where}: this drafter does not fit the model: {text}",
        hint="take the drafter that was made for this model, or go without (--spec none)",
        details={"key": key, "drafter": ours, "model": theirs},
    )


def _taps(where: str, top: Fields, own: Fields, layers: int) -> tuple[tuple[int, ...], str]:
    """The layers to look at, and who says so. Raises as read_eagle3."""
    found = [fields.sequence(LAYER_IDS) for fields in (own, top) if fields.has(LAYER_IDS)]
    if len(set(found)) > 1:
        text = f"{top.where}: {LAYER_IDS} is {list(found[1])}, in {OWN} it is {list(found[0])}"
        raise CorruptFile(text, details={"key": LAYER_IDS})
    taps = found[0] if found else (1, layers // 2 - 1, layers - 4)
    if found and (len(taps) != TAPS or not _ascends(taps)):
        text = f"{top.where}: {LAYER_IDS} {list(taps)} are not {TAPS} layers in ascending order"
        raise CorruptFile(text, details={"key": LAYER_IDS})
    if not found and not _ascends(taps):
        text = f"the usual three layers need a model of 7, this one has {layers}, and the config names none"
        raise _unfit(where, text, LAYER_IDS, None, layers)
    if taps[-1] >= layers:
        text = f"it looks at layer {taps[-1]} ({LAYER_IDS}), the model has layers 0 to {layers - 1}"
        raise _unfit(where, text, LAYER_IDS, taps[-1], layers)
    return taps, LAYER_IDS if found else "usual"


def _ascends(taps: Iterable[int]) -> bool:
    taps = list(taps)
    return taps == sorted(set(taps)) and taps[0] >= 0


def _rope(top: Fields, head_width: int) -> RopeConfig:
    """Over the whole head. A base that is not said is Llama's 10,000."""
    new = top.mapping("rope_parameters")
    scaled = new if top.has("rope_parameters") else top.mapping("rope_scaling")
    theta = new.number("rope_theta") if new.has("rope_theta") else top.number("rope_theta", 10000.0)
    return RopeConfig(theta, head_width, scaling=hf_scaling(scaled, top.integer("max_position_embeddings", 1)))
