"""GGUF files of published models as headers alone: their keys and tensors, and as many zeros as the weights would take.

The zeros take no disk. Which tensor has which storage type is what the publisher says of the mix, by kind of tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np

from strata_engine.formats.base import TensorMeta
from strata_engine.formats.gguf_types import TYPES_BY_NAME
from strata_engine.models import find_model
from strata_engine.models.exp_config import hf_exp
from strata_engine.models.fields import Fields
from strata_engine.models.vision.config import read_vision
from strata_engine.models.vision.tensors import tower_tensors
from tests.support import tiny_hybrid
from tests.support.published_configs import VISION
from tests.support.tiny_gguf import element_type, value_type

TypeOf = Callable[[str, tuple[int, ...]], str]  # tensor name, shape -> storage type
_ARCHITECTURES = {"qwen3_vl_text": "qwen3vl", "qwen3_5_text": "qwen35", "qwen4_exp_text": "qwen4exp"}


def write_header(path: Path, config: Mapping[str, Any], type_of: TypeOf) -> Path:
    """The file of a decoder; returns its path."""
    architecture = _ARCHITECTURES[config["model_type"]]
    keys = {key.replace("{a}", architecture, 1): value for key, value in _keys(config).items()}
    source = _Header({**keys, "general.architecture": architecture}, config)
    family = find_model(source)
    wanted = family.wanted(family.configure(source), source)
    _write(path, architecture, keys, {w.stored_name("gguf"): w.shape for w in wanted}, type_of)
    return path


def write_projector_header(path: Path, out_width: int, deepstack: tuple[int, ...]) -> Path:
    """The file of an image projector in F16; returns its path."""
    keys = {
        "clip.projector_type": "qwen3vl_merger",
        "clip.vision.image_size": 16 * 48,
        "clip.vision.patch_size": 16,
        "clip.vision.embedding_length": VISION["hidden_size"],
        "clip.vision.feed_forward_length": VISION["intermediate_size"],
        "clip.vision.block_count": VISION["depth"],
        "clip.vision.projection_dim": out_width,
        "clip.vision.is_deepstack_layers": [n in deepstack for n in range(VISION["depth"])],
        "clip.vision.attention.head_count": VISION["num_heads"],
    }
    source = _Header({**keys, "general.architecture": "clip"}, {})
    vision = read_vision(source)
    assert vision is not None
    shapes = {w.stored_name("gguf"): w.shape for w in tower_tensors(vision, source)}
    _write(path, "clip", keys, shapes, lambda name, shape: "F16" if len(shape) > 1 else "F32")
    return path


class _Header:
    """A WeightSource that has the tensors whose presence a family asks for."""

    kind = "gguf"
    paths = (Path("published.gguf"),)

    def __init__(self, keys: Mapping[str, Any], config: Mapping[str, Any]) -> None:
        self._keys = keys
        width, vocab = config.get("hidden_size", 1), config.get("vocab_size", 1)
        shapes = {"token_embd.weight": (vocab, width), "output.weight": (vocab, width)}
        if "num_experts" in config:
            layers = range(config["num_hidden_layers"])
            shapes |= {f"blk.{n}.ffn_gate_inp.weight": (config["num_experts"], width) for n in layers}
        if "ple_embed_dim" in config:
            shapes["per_layer_token_embd.weight"] = (table_of(config).rows, table_of(config).row_width)
        self._tensors = {n: TensorMeta(n, shape, "F32", self.paths[0], 0, 0) for n, shape in shapes.items()}

    def metadata(self) -> Mapping[str, Any]:
        return self._keys

    def tensors(self) -> Mapping[str, TensorMeta]:
        return self._tensors

    def read(self, name: str) -> memoryview:
        raise AssertionError(f"{name} is read")

    def close(self) -> None:
        pass


def table_of(config: Mapping[str, Any]) -> Any:
    """The n-gram table of a config.json."""
    source = SimpleNamespace(tensors=dict, metadata=lambda: {"config": config}, kind="safetensors", paths=())
    return hf_exp(source, Fields(config, "config.json")).tables[0][1]  # type: ignore[arg-type]


def _keys(config: Mapping[str, Any]) -> dict[str, Any]:
    if config["model_type"] == "qwen3_vl_text":
        return {
            "{a}.block_count": config["num_hidden_layers"],
            "{a}.context_length": config["max_position_embeddings"],
            "{a}.embedding_length": config["hidden_size"],
            "{a}.feed_forward_length": config["intermediate_size"],
            "{a}.attention.head_count": config["num_attention_heads"],
            "{a}.attention.head_count_kv": config["num_key_value_heads"],
            "{a}.attention.key_length": config["head_dim"],
            "{a}.attention.value_length": config["head_dim"],
            "{a}.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
            "{a}.rope.freq_base": float(config["rope_parameters"]["rope_theta"]),
            "{a}.rope.dimension_sections": [*config["rope_parameters"]["mrope_section"], 0],
            "{a}.n_deepstack_layers": 3,
        }
    keys = tiny_hybrid.gguf_metadata(SimpleNamespace(**config))
    return keys | (_exp_keys(config) if config["model_type"] == "qwen4_exp_text" else {})


def _exp_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    table = table_of(config)
    return {
        "{a}.hyper_connection.count": config["hc_count"],
        "{a}.hyper_connection.low_rank": config["hc_lowrank"],
        "{a}.attention.indexer.head_count": config["indexer_n_heads"],
        "{a}.attention.indexer.key_length": config["indexer_head_dim"],
        "{a}.attention.indexer.top_k": config["indexer_budget"],
        "{a}.attention.compress_ratios": [
            config["indexer_compress_ratio"] * (kind == "full_attention") for kind in config["layer_types"]
        ],
        "{a}.ple.layers": [config["ple_layer_ids"][0] - 1],
        "{a}.ple.ngram_size": config["ngram_size"],
        "{a}.ple.heads_per_ngram": config["heads_per_ngram"],
        "{a}.ple.conv_kernel": config["ple_conv_kernel_size"],
        "{a}.ple.eos_token_id": config["eos_token_id"],
        "{a}.ple.layer_multipliers": list(table.ngrams.multipliers),
        "{a}.ple.head_offsets": list(table.ngrams.offsets),
        "{a}.ple.head_vocab_sizes": list(table.ngrams.sizes),
        "{a}.embedding_length_per_layer_input": table.row_width,
    }


def _write(
    path: Path, architecture: str, keys: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], type_of: TypeOf
) -> None:
    writer = gguf.GGUFWriter(str(path), architecture)
    for key, value in keys.items():
        if value is not None:
            writer.add_key_value(key, value, value_type(value), element_type(value))
    total = 0
    for name, shape in shapes.items():
        storage = TYPES_BY_NAME[type_of(name, shape) if len(shape) > 1 else "F32"]
        assert shape[-1] % storage.elements == 0, (name, shape, storage)
        nbytes = prod(shape) // storage.elements * storage.nbytes
        number: Any = storage.id  # the package's enum lacks the newest
        writer.add_tensor_info(name, shape, np.dtype(np.float32), nbytes, raw_dtype=number)
        total += -(-nbytes // 32) * 32
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("r+b") as file:
        start = -(-path.stat().st_size // 32) * 32
        file.truncate(start + total)
