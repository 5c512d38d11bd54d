"""A tiny llama with a tokenizer as a GGUF file, made without torch: enough to run the whole program."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.support.tiny_gguf import write_gguf

WIDTH, HEADS, KV_HEADS, INNER, ROWS, LAYERS, CONTEXT = 64, 4, 2, 96, 320, 2, 512


def tiny_llama(path: Path) -> Path:
    """A llama of 64 x 2 layers; random weights, so it says nonsense, but quickly and for ever."""
    draw = np.random.default_rng(7)

    def matrix(*shape: int) -> np.ndarray:
        return draw.normal(0, 0.2, shape).astype(np.float32)

    tensors = {"token_embd.weight": matrix(ROWS, WIDTH), "output_norm.weight": np.ones(WIDTH, np.float32)}
    for layer in range(LAYERS):
        shapes = {
            "attn_q": (WIDTH, WIDTH), "attn_k": (WIDTH // 2, WIDTH), "attn_v": (WIDTH // 2, WIDTH),
            "attn_output": (WIDTH, WIDTH), "ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH),
            "ffn_down": (WIDTH, INNER),
        }  # fmt: skip
        tensors |= {f"blk.{layer}.{name}.weight": matrix(*shape) for name, shape in shapes.items()}
        tensors |= {f"blk.{layer}.{n}_norm.weight": np.ones(WIDTH, np.float32) for n in ("attn", "ffn")}
    metadata = {
        "{a}.block_count": LAYERS, "{a}.context_length": CONTEXT, "{a}.embedding_length": WIDTH,
        "{a}.feed_forward_length": INNER, "{a}.attention.head_count": HEADS, "{a}.attention.head_count_kv": KV_HEADS,
        "{a}.attention.layer_norm_rms_epsilon": 1e-5, "{a}.rope.dimension_count": WIDTH // HEADS,
        "{a}.rope.freq_base": 10000.0, "{a}.vocab_size": ROWS,
    }  # fmt: skip
    return write_gguf(path, "llama", metadata, tensors, types="Q8_0", tokenizer=True)[0]
