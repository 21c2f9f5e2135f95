"""Files about models, written from the figures that their makers publish: only the fields that memory depends on."""

from collections.abc import Mapping


def llama(hidden: int, layers: int, heads: int, inner: int, vocab: int = 128256) -> dict[str, object]:
    """Write a Llama 3 of some size."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "vocab_size": vocab,
        "max_position_embeddings": 131072,
        "torch_dtype": "bfloat16",
    }


def qwen3_moe(hidden: int, layers: int, heads: int, inner: int) -> dict[str, object]:
    """Write a Qwen3 with experts of some size."""
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "moe_intermediate_size": inner,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "sliding_window": None,
        "use_sliding_window": False,
    }


def gpt_oss(layers: int, count: int) -> dict[str, object]:
    """Write a gpt-oss of some size."""
    return {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_local_experts": count,
        "experts_per_token": 4,
        "num_experts_per_tok": 4,
        "num_hidden_layers": layers,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 201088,
        "max_position_embeddings": 131072,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * (layers // 2),
        "quantization_config": {
            "quant_method": "mxfp4",
            "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
        },
    }


LLAMA_8B = llama(4096, 32, 32, 14336)
LLAMA_70B = llama(8192, 80, 64, 28672)
TINY = {
    **llama(64, 2, 2, 128, vocab=4096),
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
}
QWEN3_32B: Mapping[str, object] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 5120,
    "intermediate_size": 25600,
    "num_hidden_layers": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "sliding_window": None,
    "use_sliding_window": False,
    "max_window_layers": 64,
    "torch_dtype": "bfloat16",
}
QWEN3_8B = {
    **QWEN3_32B,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
}
MISTRAL_7B = {
    **llama(4096, 32, 32, 14336, vocab=32000),
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "sliding_window": 4096,
    "max_position_embeddings": 32768,
}
MIXTRAL = {**MISTRAL_7B, "model_type": "mixtral", "sliding_window": None, "num_local_experts": 8,
           "num_experts_per_tok": 2}  # fmt: skip
DEEPSEEK_V3: Mapping[str, object] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
DEEPSEEK_V2_LITE = {
    **{name: value for name, value in DEEPSEEK_V3.items() if name not in ("q_lora_rank", "quantization_config")},
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "vocab_size": 102400,
}
GEMMA2_9B: Mapping[str, object] = {
    "model_type": "gemma2",
    "hidden_size": 3584,
    "intermediate_size": 14336,
    "num_hidden_layers": 42,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 256,
    "vocab_size": 256000,
    "sliding_window": 4096,
    "max_position_embeddings": 8192,
}
GEMMA3_27B: Mapping[str, object] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "torch_dtype": "bfloat16",
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "num_hidden_layers": 62,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "vocab_size": 262208,
        "sliding_window": 1024,
        "max_position_embeddings": 131072,
    },
    "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27, "intermediate_size": 4304},
}
GPT_OSS_20B, GPT_OSS_120B = gpt_oss(24, 32), gpt_oss(36, 128)
QWEN3_30B, QWEN3_235B = qwen3_moe(2048, 48, 32, 768), qwen3_moe(4096, 94, 64, 1536)
QWEN3_NEXT: Mapping[str, object] = {
    "model_type": "qwen3_next",
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "vocab_size": 151936,
    "max_position_embeddings": 262144,
}
QWEN38_27B = {
    **{name: value for name, value in QWEN3_NEXT.items() if "expert" not in name},
    "model_type": "qwen3_5_text",
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_hidden_layers": 64,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "linear_num_value_heads": 48,
    "vocab_size": 248320,
}
JAMBA: Mapping[str, object] = {
    "model_type": "jamba",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "attn_layer_period": 8,
    "attn_layer_offset": 4,
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_dt_rank": 256,
    "vocab_size": 65536,
    "max_position_embeddings": 262144,
}
NEMOTRON_H_8B: Mapping[str, object] = {
    "model_type": "nemotron_h",
    "hidden_size": 4096,
    "intermediate_size": 21504,
    "num_hidden_layers": 52,
    "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "vocab_size": 131072,
    "max_position_embeddings": 8192,
}
KIMI_LINEAR: Mapping[str, object] = {
    "model_type": "kimi_linear",
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "moe_intermediate_size": 1024,
    "num_experts": 256,
    "num_experts_per_token": 8,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "num_hidden_layers": 27,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "num_heads": 32,
        "head_dim": 128,
        "short_conv_kernel_size": 4,
    },
    "vocab_size": 163840,
    "model_max_length": 1048576,
}
LLAMA4_SCOUT: Mapping[str, object] = {
    "model_type": "llama4",
    "text_config": {
        "model_type": "llama4_text",
        "hidden_size": 5120,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "num_hidden_layers": 48,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_local_experts": 16,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 1,
        "attention_chunk_size": 8192,
        "vocab_size": 202048,
        "max_position_embeddings": 10485760,
    },
}
FALCON_7B: Mapping[str, object] = {
    "model_type": "falcon",
    "hidden_size": 4544,
    "num_hidden_layers": 32,
    "num_attention_heads": 71,
    "multi_query": True,
    "new_decoder_architecture": False,
    "vocab_size": 65024,
}
GPT2: Mapping[str, object] = {
    "model_type": "gpt2",
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
}
MAMBA2_2B: Mapping[str, object] = {
    "model_type": "mamba2",
    "hidden_size": 2560,
    "num_hidden_layers": 64,
    "num_heads": 80,
    "head_dim": 64,
    "state_size": 128,
    "n_groups": 1,
    "conv_kernel": 4,
    "expand": 2,
    "vocab_size": 50288,
    "tie_word_embeddings": True,
}
LFM2_1B: Mapping[str, object] = {
    "model_type": "lfm2",
    "hidden_size": 2048,
    "block_ff_dim": 12288,
    "intermediate_size": 12288,
    "block_auto_adjust_ff_dim": True,
    "block_multiple_of": 256,
    "num_hidden_layers": 16,
    "layer_types": ["full_attention" if n in (2, 5, 8, 10, 12, 14) else "conv" for n in range(16)],
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "conv_L_cache": 3,
    "vocab_size": 65536,
    "max_position_embeddings": 128000,
}
