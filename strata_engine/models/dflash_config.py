"""The numbers of a DFlash drafter, read from its config.json as it stands. No torch.

Nothing is guessed: a key whose default differs between the programs that run such drafters must be there. Source: the
layouts of published drafters as our notes list them (notes/speculative.md 1.2 to 1.5 and 2.1).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from strata_engine.errors import CorruptFile, UsageError
from strata_engine.formats.base import WeightSource
from strata_engine.models.config import ModelConfig, RopeConfig, hf_scaling
from strata_engine.models.fields import Fields

OWN = "dflash_config"
FULL, SLIDING = "full_attention", "sliding_attention"
SECOND = ("selector_rank", "conv_kernel_size")  # keys that only the second version has
_HEADS = ("markov", "domino", "confidence")  # of relatives that place their blocks at the anchor


@dataclass(frozen=True)
class LayerView:
    """What a layer's block rows see. `window`: of how many tokens, the row's own included; 0: of all before them.

    `causal`: block rows do not see the block rows after them.
    """

    window: int = 0
    causal: bool = False


@dataclass(frozen=True)
class SecondConfig:
    """What version 2 adds: convolutions over block rows, and a walk over the `top_k` best tokens of each row."""

    taps: int
    group: int
    rank: int
    top_k: int


@dataclass(frozen=True)
class DFlashConfig:
    """A drafter. Widths in elements.

    `taps`: layers of the target (0-based) whose residual after them is looked at. `block`: rows of a block as trained,
    the anchor's included. `from_anchor`: row i guesses the token after its own position (layout B), else the token at
    its own position and row 0 nothing (layout A). `layout_from`: what decided that. `multiplier`, `softcap` (0: none):
    on logits.
    """

    where: str
    vocab_size: int
    width: int
    inner_width: int
    heads: int
    kv_heads: int
    head_width: int
    norm_eps: float
    rope: RopeConfig
    views: tuple[LayerView, ...]
    taps: tuple[int, ...]
    mask_id: int
    block: int
    from_anchor: bool
    layout_from: str
    target_layers: int
    multiplier: float = 1.0
    softcap: float = 0.0
    second: SecondConfig | None = None

    @property
    def layers(self) -> int:
        """Decoder layers of the drafter."""
        return len(self.views)

    @property
    def drafts(self) -> int:
        """Tokens that a whole block guesses."""
        return self.block if self.from_anchor else self.block - 1

    @property
    def layout(self) -> str:
        """A (rows fill in their own positions) or B (rows guess what follows them)."""
        return "B" if self.from_anchor else "A"


def read_dflash(source: WeightSource, block: int | None = None, from_anchor: bool | None = None) -> DFlashConfig:
    """The config of an open drafter. `block`, `from_anchor`: given by hand, before what the config says.

    Raises CorruptFile (a key is missing or wrong) and UsageError (what is not supported).
    """
    where = str(source.paths[0].parent if source.paths else source.kind)
    if source.kind != "safetensors":
        raise UsageError(
            f"{where}: DFlash drafters are read from safetensors, this is {source.kind}",
            hint="name the drafter's Hugging Face directory",
        )
    top = Fields(source.metadata().get("config") or {}, f"{where}/config.json")
    own = top.mapping(OWN)
    _refuse(top, own)
    layers = top.integer("num_hidden_layers")
    head_width = top.integer("head_dim")
    anchor, layout_from = _layout(top, own, source.tensors(), from_anchor)
    config = DFlashConfig(
        where=where,
        vocab_size=top.integer("vocab_size"),
        width=top.integer("hidden_size"),
        inner_width=top.integer("intermediate_size"),
        heads=top.integer("num_attention_heads"),
        kv_heads=top.integer("num_key_value_heads"),
        head_width=head_width,
        norm_eps=top.number("rms_norm_eps"),
        rope=_rope(top, head_width),
        views=_views(top, own, layers),
        taps=own.sequence("target_layer_ids"),
        mask_id=own.integer("mask_token_id", least=0),
        block=_block(top, own, block),
        from_anchor=anchor,
        layout_from=layout_from,
        target_layers=_either(top, own, "num_target_layers") or 0,
        multiplier=own.number("output_multiplier", 1.0),
        softcap=own.number("final_logit_softcapping") if own.has("final_logit_softcapping") else 0.0,
        second=_second(top, own),
    )
    return _with_taps(config)


def is_second(source: WeightSource) -> bool:
    """Is this a drafter of version 2: by its name or by what only that version has?"""
    config = source.metadata().get("config") or {}
    named = [str(name) for name in config.get("architectures") or []]
    own = config.get(OWN) or {}
    return any("DFlash2" in name for name in named) or any(config.get(key) or own.get(key) for key in SECOND)


def check_target(config: DFlashConfig, target: ModelConfig) -> None:
    """Raises UsageError naming both values where the drafter was made for another target."""
    for what, ours, theirs in (
        ("hidden_size", config.width, target.width),
        ("vocab_size", config.vocab_size, target.vocab_size),
        ("num_target_layers", config.target_layers or target.layers, target.layers),
    ):
        if ours != theirs:
            raise _unfit(config, f"{what} is {ours}, the model's is {theirs}", what, ours, theirs)
    if max(config.taps) >= target.layers:
        text = f"it looks at layer {max(config.taps)} (target_layer_ids), the model has layers 0 to {target.layers - 1}"
        raise _unfit(config, text, "target_layer_ids", max(config.taps), target.layers)
    if config.mask_id >= target.vocab_size:
        text = f"mask_token_id is {config.mask_id}, the model's table has {target.vocab_size} rows"
        raise _unfit(config, text, "mask_token_id", config.mask_id, target.vocab_size)


def _unfit(config: DFlashConfig, text: str, key: str, ours: int, theirs: int) -> UsageError:
    return UsageError(
        f"{config.where}: this drafter does not fit the model: {text}",
        hint="take the drafter that was made for this model, or go without (--spec none)",
        details={"key": key, "drafter": ours, "model": theirs},
    )


def _refuse(top: Fields, own: Fields) -> None:
    if top.has("speculators_model_type"):
        raise UsageError(
            f"{top.where}: drafters in the speculators format are not supported",
            hint="take one whose config.json has dflash_config",
        )
    if not top.has(OWN):
        raise CorruptFile(f"{top.where}: {OWN} is missing: not a DFlash drafter", details={"key": OWN})
    activation = top.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UsageError(f"{top.where}: activation {activation!r} is not supported", hint="supported: silu")
    for fields, key, plain in (
        (top, "attention_bias", 0),
        (own, "attention_sink_bias", 0),
        (own, "attention_value_scale", 1),
        (own, "input_embedding_scale", 1),
        (top, "input_embedding_scale", 1),
    ):
        if fields.has(key) and fields.value(key) != plain:
            text = f"{fields.where}: {key} is {fields.value(key)!r}; only {plain} is supported"
            raise UsageError(text, details={"key": key})
    projector = own.text("projector_type", "linear")
    if projector not in ("linear", "dflash", "dflash2"):
        raise UsageError(f"{own.where}: projector_type {projector!r} is not supported", hint="supported: linear")


def _either(top: Fields, own: Fields, key: str) -> int | None:
    """A whole number that may stand at the top or in the drafter's own part; both must agree."""
    found = [fields.integer(key) for fields in (own, top) if fields.has(key)]
    if len(set(found)) > 1:
        text = f"{top.where}: {key} is {found[1]}, in {OWN} it is {found[0]}"
        raise CorruptFile(text, details={"key": key})
    return found[0] if found else None


def _block(top: Fields, own: Fields, given: int | None) -> int:
    trained = _either(top, own, "block_size")
    if trained is None and given is None:
        raise CorruptFile(
            f"{top.where}: block_size is missing",
            hint="programs take 8 or 16 then, and a wrong one ruins the drafts: write the trained one into config.json",
            details={"key": "block_size"},
        )
    shorter = own.integer("runtime_block_size") if own.has("runtime_block_size") else None
    block = given or shorter or trained or 0
    if trained is not None and block > trained:
        raise UsageError(f"{top.where}: a block of {block} rows was asked for, {trained} were trained")
    if block < 2:
        raise CorruptFile(f"{top.where}: a block of {block} rows guesses nothing", details={"key": "block_size"})
    return block


def _layout(top: Fields, own: Fields, names: Iterable[str], given: bool | None) -> tuple[bool, str]:
    """Whether row 0 guesses, and what says so (notes 1.2: the order of precedence)."""
    if given is not None:
        return given, "given"
    for fields in (top, own):
        if fields.has("sample_from_anchor"):
            return fields.flag("sample_from_anchor", False), "config.json"
    head = next((name for name in names if any(word in name for word in _HEADS)), None)
    return (True, f"tensor {head}") if head else (False, "the form of most drafters; config.json does not say")


def _views(top: Fields, own: Fields, layers: int) -> tuple[LayerView, ...]:
    """Per layer window and direction; config.json is read as it stands since readers drop windows (notes 1.3)."""
    kinds = top.texts("layer_types") or [SLIDING if slides else FULL for slides in _sliding(top, own, layers)]
    if len(kinds) != layers or not set(kinds) <= {FULL, SLIDING}:
        text = f"{top.where}: layer_types {kinds} are not {layers} of {FULL} and {SLIDING}"
        raise CorruptFile(text, details={"key": "layer_types"})
    causal = next((f.flag(key, False) for f, key in ((top, "is_causal"), (own, "causal")) if f.has(key)), None)
    window = 0
    if SLIDING in kinds:
        window = own.integer("swa_window_size") if own.has("swa_window_size") else top.integer("sliding_window")
    return tuple(
        LayerView(window if kind == SLIDING else 0, causal if causal is not None else kind == SLIDING) for kind in kinds
    )


def _sliding(top: Fields, own: Fields, layers: int) -> list[bool]:
    """Which layers have a window when layer_types does not say."""
    if own.flag("use_swa", False):
        return [True] * layers
    if not top.flag("use_sliding_window", False):
        return [False] * layers
    first = top.integer("max_window_layers", 0, least=0)
    return [layer >= first for layer in range(layers)]


def _rope(top: Fields, head_width: int) -> RopeConfig:
    """Over the whole head: the target's partial rotation is not the drafter's, whatever was copied along."""
    new = top.mapping("rope_parameters")
    scaled = new if top.has("rope_parameters") else top.mapping("rope_scaling")
    theta = new.number("rope_theta") if new.has("rope_theta") else top.number("rope_theta")
    return RopeConfig(theta, head_width, scaling=hf_scaling(scaled, top.integer("max_position_embeddings", 1)))


def _second(top: Fields, own: Fields) -> SecondConfig | None:
    if not any(fields.has(key) for fields in (top, own) for key in SECOND):
        return None
    keys = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
    found = [_either(top, own, key) for key in keys]
    if None in found:
        missing = keys[found.index(None)]
        raise CorruptFile(f"{top.where}: {missing} is missing", details={"key": missing})
    return SecondConfig(*(value or 0 for value in found))


def _with_taps(config: DFlashConfig) -> DFlashConfig:
    """Checked, and with the usual taps where the config names none (notes 1.4)."""
    taps = config.taps or _usual_taps(config)
    if list(taps) != sorted(set(taps)) or taps[0] < 0:
        text = f"{config.where}: target_layer_ids {list(taps)} are not in ascending order"
        raise CorruptFile(text, details={"key": "target_layer_ids"})
    if config.heads % config.kv_heads:
        raise CorruptFile(f"{config.where}: {config.heads} heads are no multiple of {config.kv_heads} kv heads")
    if config.second and config.width % config.second.group:
        text = f"{config.where}: a width of {config.width} is not whole groups of {config.second.group} channels"
        raise CorruptFile(text, details={"key": "conv_group_size"})
    return replace(config, taps=tuple(taps))


def _usual_taps(config: DFlashConfig) -> tuple[int, ...]:
    target, count = config.target_layers, config.layers
    if not target:
        raise CorruptFile(
            f"{config.where}: target_layer_ids and num_target_layers are missing", details={"key": "target_layer_ids"}
        )
    if count == 1:
        return (target // 2,)
    return tuple(round(1 + j * (target - 4) / (count - 1)) for j in range(count))
