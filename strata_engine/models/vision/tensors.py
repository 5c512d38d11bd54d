"""The tensors of an image tower: our names, how both kinds of checkpoints spell them, their shapes."""

from __future__ import annotations

from strata_engine.formats.base import WeightSource
from strata_engine.models.names import RowSplit, Wanted
from strata_engine.models.vision.config import VisionConfig

# our name: (GGUF, Hugging Face), without .weight and .bias
_BLOCK = {
    "norm1": ("ln1", "norm1"),
    "qkv": ("attn_qkv", "attn.qkv"),
    "o": ("attn_out", "attn.proj"),
    "norm2": ("ln2", "norm2"),
    "up": ("ffn_up", "mlp.linear_fc1"),
    "down": ("ffn_down", "mlp.linear_fc2"),
}
_MERGER = {"norm": "norm", "fc1": "linear_fc1", "fc2": "linear_fc2"}
_GGUF_MERGER = {"norm": "v.post_ln", "fc1": "mm.0", "fc2": "mm.2"}


def tower_tensors(config: VisionConfig, source: WeightSource) -> list[Wanted]:
    """Every tensor of the tower, in the order of use. Names begin with `vision.`."""
    gguf = source.kind == "gguf"
    found = _patches(config, gguf)
    for number in range(config.blocks):
        found += _block(config, number, gguf)
    for at, block in enumerate(config.deepstack):
        prefix = f"v.deepstack.{block}." if gguf else f"visual.deepstack_merger_list.{at}."
        names = {ours: prefix + (ours if gguf else hf) for ours, hf in _MERGER.items()}
        found += _merger(config, f"vision.deepstack.{at}", names, config.width * config.merged)
    names = _GGUF_MERGER if gguf else {ours: f"visual.merger.{hf}" for ours, hf in _MERGER.items()}
    return found + _merger(config, "vision.merger", names, config.width)


def _patches(config: VisionConfig, gguf: bool) -> list[Wanted]:
    pixels, width = config.pixels, config.width
    edge, position = (pixels.patch, pixels.patch), (config.side**2, width)
    if not gguf:
        shape = (width, 3, pixels.frames, *edge)
        return [
            Wanted("vision.patch", shape, "vector", "visual.patch_embed.proj.weight"),
            Wanted("vision.patch_bias", (width,), "vector", "visual.patch_embed.proj.bias"),
            Wanted("vision.position", position, "vector", "visual.pos_embed.weight"),
        ]
    return [
        Wanted("vision.patch0", (width, 3, *edge), "vector", "v.patch_embd.weight"),
        Wanted("vision.patch1", (width, 3, *edge), "vector", "v.patch_embd.weight.1"),
        Wanted("vision.patch_bias", (width,), "vector", "v.patch_embd.bias"),
        Wanted("vision.position", position, "vector", "v.position_embd.weight"),
    ]


def _block(config: VisionConfig, number: int, gguf: bool) -> list[Wanted]:
    width, inner = config.width, config.inner_width
    rows = {"qkv": (3 * width, width), "o": (width, width), "up": (inner, width), "down": (width, inner)}
    found = []
    for ours, names in _BLOCK.items():
        stored = f"v.blk.{number}.{names[0]}" if gguf else f"visual.blocks.{number}.{names[1]}"
        name = f"vision.{number}.{ours}"
        if ours in rows:
            split = RowSplit(1, tuple((f"vision.{number}.{part}", width) for part in "qkv")) if ours == "qkv" else None
            found.append(Wanted(name, rows[ours], "matrix", f"{stored}.weight", split))
        else:
            found.append(Wanted(name, (width,), "vector", f"{stored}.weight"))
        found.append(Wanted(f"{name}_bias", (rows.get(ours, (width,))[0],), "vector", f"{stored}.bias"))
    return found


def _merger(config: VisionConfig, name: str, stored: dict[str, str], norm_width: int) -> list[Wanted]:
    wide = config.width * config.merged
    return [
        Wanted(f"{name}.norm", (norm_width,), "vector", f"{stored['norm']}.weight"),
        Wanted(f"{name}.norm_bias", (norm_width,), "vector", f"{stored['norm']}.bias"),
        Wanted(f"{name}.fc1", (wide, wide), "matrix", f"{stored['fc1']}.weight"),
        Wanted(f"{name}.fc1_bias", (wide,), "vector", f"{stored['fc1']}.bias"),
        Wanted(f"{name}.fc2", (config.out_width, wide), "matrix", f"{stored['fc2']}.weight"),
        Wanted(f"{name}.fc2_bias", (config.out_width,), "vector", f"{stored['fc2']}.bias"),
    ]
