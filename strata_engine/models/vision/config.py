"""VisionConfig: the numbers of an image tower and of the images it takes, from config.json or a projector's keys."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strata_engine.errors import CorruptFile, UsageError
from strata_engine.formats.base import WeightSource
from strata_engine.models.fields import Fields

PROJECTORS = ("qwen3vl_merger",)
_EPS = 1e-6  # of every layer norm of the tower; Hugging Face's config does not hold it
_PIXELS = (65536, 16777216)  # least and most, where the checkpoint says nothing


@dataclass(frozen=True)
class PixelRules:
    """How an image becomes patches: edge of a patch, patches of a token on each side, frames of a patch, limits.

    `mean`, `std` of each colour on a scale of 0 to 1. An image is resized to between `least` and `most` pixels.
    """

    patch: int
    merge: int
    frames: int
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    least: int = _PIXELS[0]
    most: int = _PIXELS[1]

    @property
    def patch_width(self) -> int:
        """Elements of a patch vector: colours x frames x edge x edge."""
        return 3 * self.frames * self.patch**2


@dataclass(frozen=True)
class VisionConfig:
    """An image tower. Widths in elements; `side`: of the square grid of learned positions.

    `deepstack`: blocks after which features for a decoder layer are made. `image_id`: the token that stands for a
    feature, None: the tokenizer knows it by its spelling.
    """

    blocks: int
    width: int
    inner_width: int
    heads: int
    out_width: int
    side: int
    deepstack: tuple[int, ...]
    eps: float
    pixels: PixelRules
    image_id: int | None = None

    @property
    def merged(self) -> int:
        """Patches of one token."""
        return self.pixels.merge**2

    @property
    def feature_width(self) -> int:
        """Elements of a token's features, those of the deepstack included."""
        return self.out_width * (1 + len(self.deepstack))


def read_vision(source: WeightSource) -> VisionConfig | None:
    """The tower of a checkpoint, None when it has none. Raises CorruptFile (bad keys), UsageError (not supported)."""
    metadata, where = source.metadata(), str(source.paths[0]) if source.paths else source.kind
    if source.kind == "gguf":
        config = _from_gguf(Fields(metadata, where)) if "clip.projector_type" in metadata else None
    elif any(name.startswith("visual.") for name in source.tensors()):
        config = _from_hf(metadata, where)
    else:
        config = None
    if config is not None:
        _check(config, where)
    return config


def planned_vision(source: WeightSource) -> VisionConfig | None:
    """The tower that config.json tells of, whether or not there are weights. Raises as `read_vision`."""
    metadata, where = source.metadata(), str(source.paths[0]) if source.paths else source.kind
    if not isinstance((metadata.get("config") or {}).get("vision_config"), dict):
        return None
    config = _from_hf(metadata, where)
    _check(config, where)
    return config


def _check(config: VisionConfig, where: str) -> None:
    if config.width % config.heads or config.width // config.heads % 4:
        raise CorruptFile(f"{where}: image tower of width {config.width} does not split into {config.heads} heads")
    if any(not 0 <= block < config.blocks for block in config.deepstack):
        raise CorruptFile(f"{where}: deepstack blocks {list(config.deepstack)} of a tower of {config.blocks} blocks")


def _from_hf(metadata: Mapping[str, Any], where: str) -> VisionConfig:
    config = metadata.get("config") or {}
    fields = Fields(config, where).mapping("vision_config")
    activation = fields.text("hidden_act", "gelu_pytorch_tanh")
    if activation != "gelu_pytorch_tanh":
        raise UsageError(f"{where}: image tower with activation {activation!r} is not supported")
    if fields.integer("in_channels", 3) != 3:
        raise UsageError(f"{where}: image tower of {fields.integer('in_channels')} colours is not supported")
    return VisionConfig(
        blocks=fields.integer("depth"),
        width=fields.integer("hidden_size"),
        inner_width=fields.integer("intermediate_size"),
        heads=fields.integer("num_heads"),
        out_width=fields.integer("out_hidden_size"),
        side=_side(fields.integer("num_position_embeddings"), where),
        deepstack=fields.sequence("deepstack_visual_indexes"),
        eps=_EPS,
        pixels=_hf_pixels(metadata, fields),
        image_id=Fields(config, where).integer("image_token_id", least=0),
    )


def _hf_pixels(metadata: Mapping[str, Any], fields: Fields) -> PixelRules:
    nested = (metadata.get("processor_config") or {}).get("image_processor")
    own = Fields(metadata.get("preprocessor_config") or nested or {}, f"{fields.where}: preprocessor_config")
    size = own.mapping("size")
    return PixelRules(
        patch=fields.integer("patch_size"),
        merge=fields.integer("spatial_merge_size"),
        frames=fields.integer("temporal_patch_size"),
        mean=_colours(own, "image_mean"),
        std=_colours(own, "image_std"),
        least=size.integer("shortest_edge", own.integer("min_pixels", _PIXELS[0])),
        most=size.integer("longest_edge", own.integer("max_pixels", _PIXELS[1])),
    )


def _from_gguf(fields: Fields) -> VisionConfig:
    def key(name: str) -> str:
        return f"clip.vision.{name}"

    kind = fields.text("clip.projector_type")
    if kind not in PROJECTORS:
        text = f"{fields.where}: image projector {kind!r} is not supported"
        raise UsageError(
            text,
            hint=f"supported: {', '.join(PROJECTORS)}; --mmproj none loads the model without it",
            details={"projector": kind},
        )
    patch = fields.integer(key("patch_size"))
    marks = fields.flags(key("is_deepstack_layers"))
    return VisionConfig(
        blocks=fields.integer(key("block_count")),
        width=fields.integer(key("embedding_length")),
        inner_width=fields.integer(key("feed_forward_length")),
        heads=fields.integer(key("attention.head_count")),
        out_width=fields.integer(key("projection_dim")),
        side=fields.integer(key("image_size")) // patch,
        deepstack=tuple(number for number, mark in enumerate(marks) if mark),
        eps=fields.number(key("attention.layer_norm_epsilon"), _EPS),
        pixels=PixelRules(
            patch=patch,
            merge=fields.integer(key("spatial_merge_size"), 2),
            frames=2,
            mean=_colours(fields, key("image_mean")),
            std=_colours(fields, key("image_std")),
            least=fields.integer(key("image_min_pixels"), _PIXELS[0]),
            most=fields.integer(key("image_max_pixels"), _PIXELS[1]),
        ),
    )


def _colours(fields: Fields, key: str) -> tuple[float, float, float]:
    if not fields.has(key):
        return (0.5, 0.5, 0.5)
    red, green, blue = fields.numbers(key, 3)
    return red, green, blue


def _side(positions: int, where: str) -> int:
    side = math.isqrt(positions)
    if side * side != positions:
        raise CorruptFile(f"{where}: {positions} positions of the image tower are no square grid")
    return side
