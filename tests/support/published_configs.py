"""The numbers of published models' configs, and how their quantised releases describe themselves. Facts only."""

from __future__ import annotations

from typing import Any

_QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 128, "vocab_size": 151936,
          "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "hidden_act": "silu",
          "torch_dtype": "bfloat16"}  # fmt: skip
_QWEN35 = {"vocab_size": 248320, "head_dim": 256, "max_position_embeddings": 262144, "rms_norm_eps": 1e-6,
           "hidden_act": "silu", "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
           "linear_num_key_heads": 16, "full_attention_interval": 4, "attn_output_gate": True,
           "output_gate_type": "swish", "tie_word_embeddings": False, "dtype": "bfloat16",
           "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
                               "mrope_section": [11, 11, 10], "mrope_interleaved": True}}  # fmt: skip


# models.md 2.5: the tower of the whole Qwen3.5 line; Qwen3-VL has the same and a deepstack
VISION = {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16, "in_channels": 3,
          "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2, "num_position_embeddings": 2304,
          "hidden_act": "gelu_pytorch_tanh", "deepstack_visual_indexes": []}  # fmt: skip


def _kinds(layers: int) -> list[str]:
    return ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(layers)]


CONFIGS: dict[str, dict[str, Any]] = {
    "smollm2-135m": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536,
        "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 1e5, "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    },
    "qwen3-8b": {
        **_QWEN3, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
        "num_key_value_heads": 8, "tie_word_embeddings": False,
    },
    "qwen3-vl-8b": {
        **_QWEN3, "architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl_text",
        "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
        "num_key_value_heads": 8, "tie_word_embeddings": False, "max_position_embeddings": 262144,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20],
                            "mrope_interleaved": True},
    },
    "qwen3-30b-a3b": {
        **_QWEN3, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048,
        "intermediate_size": 6144, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
        "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": True,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "tie_word_embeddings": False,
    },
    "qwen3.5-27b": {
        **_QWEN35, "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "hidden_size": 5120,
        "intermediate_size": 17408, "num_hidden_layers": 64, "num_attention_heads": 24, "num_key_value_heads": 4,
        "linear_num_value_heads": 48, "layer_types": _kinds(64),
    },
    "qwen3.5-35b-a3b": {
        **_QWEN35, "architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text", "hidden_size": 2048,
        "num_hidden_layers": 40, "num_attention_heads": 16, "num_key_value_heads": 2, "linear_num_value_heads": 32,
        "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "layer_types": _kinds(40),
    },
    "qwen3.8-flash-next": {
        **_QWEN35, "architectures": ["Qwen4ExpForCausalLM"], "model_type": "qwen4_exp_text", "hidden_size": 2560,
        "num_hidden_layers": 48, "num_attention_heads": 24, "num_key_value_heads": 2, "linear_num_value_heads": 48,
        "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 640,
        "shared_expert_intermediate_size": 640, "output_gate_type": "sigmoid", "eos_token_id": 248044,
        "layer_types": _kinds(48), "hc_count": 4, "hc_lowrank": 320, "ple_layer_ids": [2], "ple_embed_dim": 2560,
        "ple_conv_kernel_size": 4, "ngram_size": 3, "heads_per_ngram": 8, "ngram_vocab_size_base": 20000000,
        "make_ngram_vocab_size_divisible_by": 128, "seed": 1234, "split_ngram_parts": 128, "indexer_n_heads": 4,
        "indexer_kv_heads": 1, "indexer_head_dim": 128, "indexer_budget": 2048, "indexer_compress_ratio": 4,
    },
}  # fmt: skip

QUANTISED: dict[str, dict[str, Any]] = {
    "bf16": {},
    "fp8": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128],
            "modules_to_not_convert": ["lm_head", "model.embed_tokens"]},
    "int4": {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False},
    "w4a16": {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
              "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
                  "num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128}}}},
    "qqq": {"quant_method": "qqq", "wbits": 4, "group_size": 128},
    # the official kind of Qwen3.5: routed experts only
    "experts": {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False,
                "dynamic": {"-:.*attn.*": {}, "-:.*shared_expert.*": {}, "-:.*mtp.*": {}, "-:.*visual.*": {}}},
}  # fmt: skip


def seeing(config: dict[str, Any], deepstack: tuple[int, ...] = ()) -> dict[str, Any]:
    """The config.json of a release that holds an image tower: the decoder's keys are nested."""
    outer = {"architectures", "quantization_config", "tie_word_embeddings"}
    text = {key: value for key, value in config.items() if key not in outer}
    vision = {**VISION, "out_hidden_size": config["hidden_size"], "deepstack_visual_indexes": list(deepstack)}
    kept = {key: value for key, value in config.items() if key in outer}
    return {**kept, "text_config": text, "vision_config": vision, "image_token_id": 151655}


def config_of(name: str, quantised: str) -> dict[str, Any]:
    """The config.json of a release."""
    settings = QUANTISED[quantised]
    return {**CONFIGS[name], **({"quantization_config": settings} if settings else {})}
