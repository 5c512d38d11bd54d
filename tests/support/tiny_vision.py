"""Tiny random models that see, prompts with images in them, and what transformers says of both."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers.models.qwen3_5 import Qwen3_5Config, Qwen3_5ForConditionalGeneration
from transformers.models.qwen3_5_moe import Qwen3_5MoeConfig, Qwen3_5MoeForConditionalGeneration
from transformers.models.qwen3_vl import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from strata_engine.core.pictures import Picture, Pictures
from strata_engine.formats.base import WeightSource
from strata_engine.formats.nested import flattened
from strata_engine.text import images
from tests.support import tiny_hybrid
from tests.support.tiny_gguf import write_gguf
from tests.support.tiny_hybrid import EXPERTS, LINEAR
from tests.support.tiny_models import BASE, draw, memory_source
from tests.support.tiny_tokenizer import CONTROL, tokenizer_metadata

IMAGE, START, END = 100, 102, 103
VISION = {
    "depth": 3,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "in_channels": 3,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 64,
    "num_position_embeddings": 36,
    "hidden_act": "gelu_pytorch_tanh",
}
ROPE = {"rope_type": "default", "rope_theta": 5e6, "mrope_interleaved": True, "mrope_section": [6, 5, 5]}
TEXT = {**BASE, "num_hidden_layers": 3, "head_dim": 32, "rope_parameters": ROPE, "tie_word_embeddings": False}
IDS = {"image_token_id": IMAGE, "video_token_id": 101, "vision_start_token_id": START, "vision_end_token_id": END}
PIXELS = (64, 1024)  # one token of 8 x 8 pixels to 16 of them
PATCH_WIDTH = 3 * 2 * 4 * 4


def tiny_vl(deepstack: Sequence[int] = (0, 1), seed: int = 0, **text: Any) -> transformers.PreTrainedModel:
    """A random f32 Qwen3-VL."""
    vision = {**VISION, "deepstack_visual_indexes": list(deepstack)}
    config = Qwen3VLConfig(text_config={**TEXT, **text}, vision_config=vision, tie_word_embeddings=False, **IDS)
    return draw(lambda: Qwen3VLForConditionalGeneration(config), seed)


def tiny_vl_35(experts: bool = False, seed: int = 0, **more: Any) -> transformers.PreTrainedModel:
    """A random f32 Qwen3.5 that sees, dense or with experts."""
    rope = {**ROPE, "rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [2, 1, 1]}
    text = {**TEXT, **LINEAR, "num_hidden_layers": 4, "rope_parameters": rope, **(EXPERTS if experts else {}), **more}
    config_class, model_class = (
        (Qwen3_5MoeConfig, Qwen3_5MoeForConditionalGeneration)
        if experts
        else (Qwen3_5Config, Qwen3_5ForConditionalGeneration)
    )
    config = config_class(text_config=text, vision_config=VISION, tie_word_embeddings=False, **IDS)
    return draw(lambda: model_class(config), seed)


def source_of(model: transformers.PreTrainedModel) -> WeightSource:
    """The model as the engine opens it, without touching the disk."""
    return flattened(memory_source(model))


def seen_prompt(*pieces: list[int] | tuple[int, int], seed: int = 0) -> tuple[list[int], Pictures]:
    """Ids and images of a prompt: a list is text, a pair (h, w) an image of h x w tokens with random pixels."""
    ids: list[int] = []
    images: list[Picture] = []
    random = np.random.default_rng(seed)
    for number, piece in enumerate(pieces):
        if isinstance(piece, list):
            ids += piece
            continue
        h, w = piece
        patches = random.standard_normal((h * w * 4, PATCH_WIDTH), dtype=np.float32)
        images.append(Picture(len(ids) + 1, h, w, f"{seed}:{number}", patches))
        ids += [START, *[IMAGE] * (h * w), END]
    return ids, Pictures(len(ids), images)


def oracle(
    model: transformers.PreTrainedModel, ids: list[int], pictures: Pictures, prompt: int, image_id: int = IMAGE
) -> torch.Tensor:
    """Logits [n, V] of transformers: the first `prompt` tokens at once, the rest one by one with its cache."""
    patches = torch.from_numpy(np.concatenate([image.patches for image in pictures.images]))
    grid = torch.tensor([[1, 2 * image.height, 2 * image.width] for image in pictures.images])
    given = torch.tensor([ids[:prompt]])
    model.config.image_token_id = image_id
    with torch.no_grad(), warnings.catch_warnings():
        # the newest transformers call it `cache`, those before know only the old name
        warnings.filterwarnings("ignore", message=".*past_key_values", category=FutureWarning)
        out = model(
            input_ids=given, pixel_values=patches, image_grid_thw=grid, mm_token_type_ids=(given == image_id).int(),
            use_cache=True,
        )  # fmt: skip
        found = [out.logits[0]]
        for token in ids[prompt:]:
            out = model(input_ids=torch.tensor([[token]]), past_key_values=out.past_key_values, use_cache=True)
            found.append(out.logits[0])
    return torch.cat(found).float()


def write_vl_gguf(
    model: transformers.PreTrainedModel,
    directory: Path,
    tokenizer: bool | dict[str, Any] = False,
    out_width: int = 64,
    draft: Mapping[str, torch.Tensor] | None = None,
) -> tuple[Path, Path]:
    """A model that sees as the two files of llama.cpp: the decoder's and the projector's. `out_width` may be wrong.

    `draft`: tensors of a draft head, of a hybrid.
    """
    text, vision = model.config.text_config, model.config.vision_config
    decoder, projector = directory / "model.gguf", directory / "mmproj-model.gguf"
    state = {name: value.detach().float().numpy() for name, value in model.state_dict().items()}
    family = text.model_type.removesuffix("_text")
    if family in tiny_hybrid.ARCHITECTURES:
        own = _Part(
            {spelled(name): value for name, value in model.state_dict().items() if ".visual." not in name}, text
        )
        keys = tiny_hybrid.gguf_metadata(text)
        if draft:
            keys |= {"{a}.block_count": text.num_hidden_layers + 1, "{a}.nextn_predict_layers": 1}
        tensors = tiny_hybrid.gguf_tensors(own, family, draft=draft)  # type: ignore[arg-type]
        write_gguf(decoder, tiny_hybrid.ARCHITECTURES[family], keys, tensors, tokenizer=tokenizer)
    else:
        write_gguf(decoder, "qwen3vl", _decoder_keys(text), _decoder_tensors(state, text), tokenizer=tokenizer)
    write_gguf(projector, "clip", _projector_keys(vision, out_width), _projector_tensors(state, vision, out_width))
    return decoder, projector


class _Part:
    """The decoder of a model, for a converter that asks a model."""

    def __init__(self, tensors: dict[str, torch.Tensor], config: Any) -> None:
        self._tensors, self.config = tensors, config

    def state_dict(self) -> dict[str, torch.Tensor]:
        return self._tensors


def _decoder_state(model: transformers.PreTrainedModel) -> dict[str, torch.Tensor]:
    return {spelled(name): value for name, value in model.state_dict().items() if ".visual." not in name}


def spelled(name: str) -> str:
    """A name of the nested decoder as in a text-only checkpoint."""
    return name.replace("model.language_model.", "model.", 1)


def _decoder_keys(text: Any) -> dict[str, Any]:
    return {
        "{a}.block_count": text.num_hidden_layers,
        "{a}.context_length": text.max_position_embeddings,
        "{a}.embedding_length": text.hidden_size,
        "{a}.feed_forward_length": text.intermediate_size,
        "{a}.attention.head_count": text.num_attention_heads,
        "{a}.attention.head_count_kv": text.num_key_value_heads,
        "{a}.attention.key_length": text.head_dim,
        "{a}.attention.value_length": text.head_dim,
        "{a}.attention.layer_norm_rms_epsilon": float(text.rms_norm_eps),
        "{a}.rope.freq_base": float(text.rope_parameters["rope_theta"]),
        "{a}.rope.dimension_sections": [*text.rope_parameters["mrope_section"], 0],
        "{a}.n_deepstack_layers": 2,
    }


def _decoder_tensors(state: dict[str, np.ndarray], text: Any) -> dict[str, np.ndarray]:
    from strata_engine.models.names import NAMES

    found = {}
    for gguf_name, hf_name in NAMES.values():
        for layer in range(text.num_hidden_layers) if "{n}" in hf_name else [0]:
            spelled = hf_name.replace("{n}", str(layer))
            value = state.get(spelled.replace("model.", "model.language_model.", 1), state.get(spelled))
            if value is not None:
                found[gguf_name.replace("{n}", str(layer))] = np.ascontiguousarray(value)
    return found


def _projector_keys(vision: Any, out_width: int) -> dict[str, Any]:
    layers = [number in _deepstack(vision) for number in range(vision.depth)]
    return {
        "clip.projector_type": "qwen3vl_merger",
        "clip.has_vision_encoder": True,
        "clip.use_gelu": True,
        "clip.vision.image_size": vision.patch_size * int(vision.num_position_embeddings**0.5),
        "clip.vision.patch_size": vision.patch_size,
        "clip.vision.embedding_length": vision.hidden_size,
        "clip.vision.feed_forward_length": vision.intermediate_size,
        "clip.vision.block_count": vision.depth,
        "clip.vision.projection_dim": out_width,
        "clip.vision.image_mean": [0.5, 0.5, 0.5],
        "clip.vision.image_std": [0.5, 0.5, 0.5],
        "clip.vision.image_min_pixels": PIXELS[0],
        "clip.vision.image_max_pixels": PIXELS[1],
        "clip.vision.spatial_merge_size": vision.spatial_merge_size,
        "clip.vision.is_deepstack_layers": layers,
        "clip.vision.attention.head_count": vision.num_heads,
        "clip.vision.attention.layer_norm_epsilon": 1e-6,
    }


def _deepstack(vision: Any) -> list[int]:
    return list(getattr(vision, "deepstack_visual_indexes", None) or [])


def _projector_tensors(state: dict[str, np.ndarray], vision: Any, out_width: int) -> dict[str, np.ndarray]:
    names = {"merger.norm": "v.post_ln", "merger.linear_fc1": "mm.0", "merger.linear_fc2": "mm.2"}
    names |= {"patch_embed.proj.bias": "v.patch_embd.bias", "pos_embed.weight": "v.position_embd.weight"}
    parts = {"attn.qkv": "attn_qkv", "attn.proj": "attn_out", "mlp.linear_fc1": "ffn_up", "mlp.linear_fc2": "ffn_down"}
    for n in range(vision.depth):
        names |= {f"blocks.{n}.{ours}": f"v.blk.{n}.{theirs}" for ours, theirs in parts.items()}
        names |= {f"blocks.{n}.norm{i}": f"v.blk.{n}.ln{i}" for i in (1, 2)}
    for at, block in enumerate(_deepstack(vision)):
        merger = {"norm": "norm", "linear_fc1": "fc1", "linear_fc2": "fc2"}
        names |= {f"deepstack_merger_list.{at}.{ours}": f"v.deepstack.{block}.{m}" for ours, m in merger.items()}
    found = {}
    for ours, theirs in names.items():
        for end in ("", ".weight", ".bias"):
            value = state.get(f"model.visual.{ours}{end}")
            if value is not None:
                found[theirs + end] = value[:out_width] if ours.endswith("fc2") and "mlp" not in ours else value
    kernel = state["model.visual.patch_embed.proj.weight"]
    found["v.patch_embd.weight"], found["v.patch_embd.weight.1"] = (
        np.ascontiguousarray(kernel[:, :, frame]) for frame in range(2)
    )
    return found


def seeing_tokenizer(rows: int) -> dict[str, Any]:
    """Keys of the tiny vocabulary whose last tokens are those of images."""
    keys = tokenizer_metadata(rows)
    tokens, kinds = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    tokens[-3:], kinds[-3:] = [images.START, images.PAD, images.END], [CONTROL] * 3
    return {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds}
