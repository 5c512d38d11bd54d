"""Tiny random models that see, prompts with images in them, and what transformers says of both."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import transformers
from transformers.models.qwen3_vl import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from strata_engine.core.pictures import Picture, Pictures
from strata_engine.formats.base import WeightSource
from strata_engine.formats.nested import flattened
from tests.support.tiny_models import BASE, draw, memory_source

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
PATCH_WIDTH = 3 * 2 * 4 * 4


def tiny_vl(deepstack: Sequence[int] = (0, 1), seed: int = 0, **text: Any) -> transformers.PreTrainedModel:
    """A random f32 Qwen3-VL."""
    vision = {**VISION, "deepstack_visual_indexes": list(deepstack)}
    config = Qwen3VLConfig(text_config={**TEXT, **text}, vision_config=vision, tie_word_embeddings=False, **IDS)
    return draw(lambda: Qwen3VLForConditionalGeneration(config), seed)


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


def oracle(model: transformers.PreTrainedModel, ids: list[int], pictures: Pictures, prompt: int) -> torch.Tensor:
    """Logits [n, V] of transformers: the first `prompt` tokens at once, the rest one by one with its cache."""
    patches = torch.from_numpy(np.concatenate([image.patches for image in pictures.images]))
    grid = torch.tensor([[1, 2 * image.height, 2 * image.width] for image in pictures.images])
    given = torch.tensor([ids[:prompt]])
    with torch.no_grad(), warnings.catch_warnings():
        # the newest transformers call it `cache`, those before know only the old name
        warnings.filterwarnings("ignore", message=".*past_key_values", category=FutureWarning)
        out = model(
            input_ids=given, pixel_values=patches, image_grid_thw=grid, mm_token_type_ids=(given == IMAGE).int(),
            use_cache=True,
        )  # fmt: skip
        found = [out.logits[0]]
        for token in ids[prompt:]:
            out = model(input_ids=torch.tensor([[token]]), past_key_values=out.past_key_values, use_cache=True)
            found.append(out.logits[0])
    return torch.cat(found).float()
