"""A model's config.json becomes a shape: by published figures, family by family, and with one line where it cannot."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from gateway.modelconfig import index_bytes, shape_of, text_of
from gateway.modelfile import ConfigFault, Fields, read_json
from gateway.quantized import kept_of
from policies.layers import Heads, Latent, State
from tests.gateway import model_files as files


def without(content: Mapping[str, object], *names: str) -> dict[str, object]:
    return {name: value for name, value in content.items() if name not in names}


@pytest.mark.parametrize(
    ("content", "billions"),
    [
        (files.LLAMA_8B, 8.030),
        (files.LLAMA_70B, 70.554),
        (files.QWEN3_8B, 8.191),
        (files.QWEN3_32B, 32.762),
        (files.MISTRAL_7B, 7.242),
        (files.MIXTRAL, 46.703),
        (files.DEEPSEEK_V3, 671.026),
        (files.DEEPSEEK_V2_LITE, 15.706),
        (files.GEMMA2_9B, 9.242),
        (files.GEMMA3_27B, 27.42),
        (files.GPT_OSS_20B, 20.91),
        (files.GPT_OSS_120B, 116.8),
        (files.QWEN3_30B, 30.53),
        (files.QWEN3_235B, 235.09),
        (files.QWEN3_NEXT, 79.67),
        (files.JAMBA, 51.57),
        (files.NEMOTRON_H_8B, 8.10),
        (files.KIMI_LINEAR, 49.12),
        (files.LLAMA4_SCOUT, 107.77),
        (files.FALCON_7B, 6.92),
        (files.GPT2, 0.1236),
        (files.MAMBA2_2B, 2.70),
        (files.LFM2_1B, 1.17),
    ],
)
def test_counts_the_parameters_that_are_published(content: Mapping[str, object], billions: float) -> None:
    assert shape_of(content).params() / 1e9 == pytest.approx(billions, rel=1e-3)


@pytest.mark.parametrize(
    ("content", "everywhere", "past_windows"),
    [
        (files.LLAMA_8B, 131_072, 131_072),
        (files.LLAMA_70B, 327_680, 327_680),
        (files.QWEN3_32B, 262_144, 262_144),
        (files.QWEN3_8B, 147_456, 147_456),
        (files.MISTRAL_7B, 131_072, 0),
        (files.MIXTRAL, 131_072, 131_072),
        (files.DEEPSEEK_V3, 70_272, 70_272),
        (files.GEMMA2_9B, 344_064, 172_032),
        (files.GEMMA3_27B, 507_904, 81_920),
        (files.GPT_OSS_20B, 49_152, 24_576),
        (files.QWEN3_NEXT, 24_576, 24_576),
        (files.JAMBA, 16_384, 16_384),
        (files.NEMOTRON_H_8B, 16_384, 16_384),
        (files.KIMI_LINEAR, 8_064, 8_064),
        (files.LLAMA4_SCOUT, 196_608, 49_152),
        (files.FALCON_7B, 8_192, 8_192),
        (files.MAMBA2_2B, 0, 0),
    ],
)
def test_counts_the_bytes_of_a_token(content: Mapping[str, object], everywhere: int, past_windows: int) -> None:
    shape = shape_of(content)
    assert (shape.bytes_per_token(2), shape.bytes_per_token(2, past_windows=True)) == (everywhere, past_windows)


def kinds(content: Mapping[str, object]) -> str:
    """Word what each layer keeps: a letter, a number of tokens for windows."""
    return "".join(letter(layer.cache) for layer in shape_of(content).layers)


def letter(cache: object) -> str:
    return {Heads: "f", Latent: "l", State: "s", type(None): "."}[type(cache)] if not windowed(cache) else "w"


def windowed(cache: object) -> bool:
    return isinstance(cache, Heads) and cache.window is not None


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (files.GEMMA2_9B, "wf" * 21),
        (files.GEMMA3_27B, "wwwwwf" * 10 + "ww"),
        (files.GPT_OSS_20B, "wf" * 12),
        (files.MISTRAL_7B, "w" * 32),
        (files.QWEN3_32B, "f" * 64),
        ({**files.QWEN3_8B, "sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 30},
         "f" * 30 + "w" * 6),
        (files.QWEN3_NEXT, "sssf" * 12),
        (files.JAMBA, "ssssfsss" * 4),
        (files.NEMOTRON_H_8B, "s.s.s.sf.s.s.s.s.sf.s.s.s.s.sf.s.s.s.s.sf.s.s.s.s.s."),
        (files.KIMI_LINEAR, "sssl" * 6 + "ssl"),
        (files.LLAMA4_SCOUT, "wwwf" * 12),
        (files.LFM2_1B, "ssfssfssfsfsfsfs"),
        ({**without(files.JAMBA, "attn_layer_period"), "num_hidden_layers": 4, "attn_layer_indices": [1]}, "sfss"),
        ({**files.LLAMA_8B, "num_kv_shared_layers": 30}, "ff" + "." * 30),
    ],
)  # fmt: skip
def test_knows_what_each_layer_keeps(content: Mapping[str, object], expected: str) -> None:
    assert kinds(content) == expected


def test_a_state_has_the_size_that_vllm_pages_by() -> None:
    layer = shape_of(files.QWEN38_27B).layers[0]
    assert isinstance(layer.cache, State)
    assert layer.cache.bytes_per_sequence() == 3_207_168  # vLLM pads it by 0.13 % to 1,568 tokens of 2,048 bytes


def test_a_state_is_kept_in_the_type_that_the_file_says() -> None:
    small = shape_of({**files.QWEN3_NEXT, "mamba_ssm_dtype": "bfloat16"}).state_bytes_per_sequence()
    assert small < 0.6 * shape_of(files.QWEN3_NEXT).state_bytes_per_sequence()


def test_a_sparse_indexer_keeps_a_key_of_its_own() -> None:
    sparse = shape_of({**files.DEEPSEEK_V3, "index_head_dim": 128})
    assert sparse.bytes_per_token(2) == 70_272 + 61 * 132


def test_full_layers_may_have_heads_of_their_own() -> None:
    content = {**files.GEMMA2_9B, "global_head_dim": 512, "num_global_key_value_heads": 2}
    assert {layer.cache for layer in shape_of(content).layers} == {Heads(8, 512, 4096), Heads(2, 1024)}


def test_a_nested_part_takes_what_it_lacks_from_the_outer_one() -> None:
    fields = text_of({"quantization_config": {"quant_method": "fp8"}, "text_config": {"model_type": "x"}})
    assert fields.inner("quantization_config") is not None
    assert text_of({"thinker_config": {"text_config": {"model_type": "deep"}}}).word("model_type") == "deep"


def test_a_vision_tower_is_estimated_and_whole_on_every_gpu() -> None:
    with_eyes, blind = shape_of(files.GEMMA3_27B), shape_of(without(files.GEMMA3_27B, "vision_config"))
    assert with_eyes.params() - blind.params() == pytest.approx(0.41e9, rel=0.02)
    assert [part.shards for part in with_eyes.embeds if part.kind == "vision"] == [1]


@pytest.mark.parametrize(
    ("changes", "sparse"),
    [
        ({"decoder_sparse_step": 2}, [1, 3, 5]),
        ({"mlp_only_layers": [0, 5]}, [1, 2, 3, 4]),
        ({"moe_layers": [2]}, [2]),
        ({"moe_layer_freq": [0, 1, 1, 0, 0, 1], "decoder_sparse_step": None}, [1, 2, 5]),
        ({"moe_layer_freq": 3, "decoder_sparse_step": None}, [0, 3]),
        ({"moe_layer_start_index": 4}, [4, 5]),
        ({"first_k_dense_replace": 5}, [5]),
        ({"num_experts": 0}, []),
    ],
)
def test_knows_which_layers_have_experts(changes: dict[str, object], sparse: list[int]) -> None:
    shape = shape_of({**files.QWEN3_30B, "num_hidden_layers": 6, **changes})
    found = [n for n, layer in enumerate(shape.layers) if any(part.kind == "experts" for part in layer.feed.parts)]
    assert found == sparse


def test_a_width_may_be_said_layer_by_layer() -> None:
    shape = shape_of({**files.LLAMA_8B, "num_hidden_layers": 2, "intermediate_size": [100, 200]})
    assert [layer.feed.parts[0].values for layer in shape.layers] == [3 * 4096 * 100, 3 * 4096 * 200]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ({}, "has no hidden_size or n_embd or d_model or model_dim"),
        ({**files.LLAMA_8B, "hidden_size": "large"}, "hidden_size must be a whole number from 1, is 'large'"),
        ({**files.LLAMA_8B, "hidden_size": True}, "hidden_size must be a whole number from 1, is True"),
        ({**files.LLAMA_8B, "num_key_value_heads": 0}, "num_key_value_heads must be a whole number from 1, is 0"),
        ({**files.LLAMA_8B, "num_hidden_layers": 10**6}, "num_hidden_layers is 1000000, more than 4096"),
        ({**files.LLAMA_8B, "layer_types": ["full_attention"]}, "has types of 1 layers, and num_hidden_layers 32"),
        ({**files.LLAMA_8B, "layer_types": ["odd"] * 32}, "has layers of type 'odd', which is not known here"),
        ({**files.LLAMA_8B, "intermediate_size": [1]}, "intermediate_size has no whole number for layer 1: [1]"),
        ({**files.LLAMA_8B, "model_type": "zamba2"},
         "model_type zamba2: its layers keep something that is not counted here"),
        ({**files.LLAMA_8B, "is_encoder_decoder": True},
         "model_type llama: models with an encoder keep another cache; only decoders are counted"),
        ({**files.NEMOTRON_H_8B, "hybrid_override_pattern": "-" * 52},
         "has no layer that keeps anything of a sequence"),
        ({**files.LLAMA_8B, "layer_types": ["sliding_attention"] * 32}, "has no attention_chunk_size"),
    ],
)  # fmt: skip
def test_says_in_one_line_what_is_wrong(content: Mapping[str, object], fault: str) -> None:
    with pytest.raises(ConfigFault) as caught:
        shape_of(content)
    assert str(caught.value) == fault


@pytest.mark.parametrize(
    ("text", "fault"),
    [("{", "is not JSON: "), ("[]", "is no JSON object"), (None, "cannot be read: No such file or directory")],
)
def test_refuses_files_that_are_no_object(tmp_path: Path, text: str | None, fault: str) -> None:
    file = tmp_path / "config.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigFault, match=fault):
        read_json(file)


def test_reads_the_true_size_from_the_index_beside_it(tmp_path: Path) -> None:
    config, index = tmp_path / "config.json", tmp_path / "model.safetensors.index.json"
    assert index_bytes(config) is None
    index.write_text(json.dumps({"metadata": {"total_size": 123}}))
    assert index_bytes(config) == 123
    index.write_text(json.dumps({"weight_map": {}}))
    assert index_bytes(config) is None


@pytest.mark.parametrize(
    ("scheme", "name", "bits", "kv_bytes"),
    [
        (None, "bf16", 16, 2),
        ({"quant_method": "fp8"}, "fp8", 8, 2),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "awq int4", 4.15625, 2),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "gptq int8", 8, 2),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes 4-bit", 4.5, 2),
        ({"quant_method": "bitsandbytes"}, "bitsandbytes 8-bit", 8, 2),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}, "nvfp4", 4.5, 1),
        ({"quantization": {"quant_algo": "FP8"}}, "fp8", 8, 2),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8},
          "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}}}, "fp8", 8, 1),
        ({"quant_method": "compressed-tensors",
          "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}}},
         "fp4", 4.5, 2),
        ({"quant_method": "compressed-tensors",
          "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 128}}}},
         "int4", 4.15625, 2),
        ({"quant_method": "compressed-tensors",
          "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "int", "group_size": -1}}}}, "int8", 8, 2),
    ],
)  # fmt: skip
def test_honours_how_a_checkpoint_is_quantized(
    scheme: dict[str, object] | None, name: str, bits: float, kv_bytes: float
) -> None:
    kept = kept_of(Fields({"quantization_config": scheme}), "auto", "auto")
    quantized = kept.precision.quantized_bits if scheme else kept.precision.bits
    assert (kept.name, kept.kv_bytes) == (name, kv_bytes)
    assert quantized == pytest.approx(bits, abs=1e-4)


def test_experts_in_mxfp4_are_as_wide_as_their_kernels_make_them() -> None:
    kept = kept_of(Fields(files.GPT_OSS_120B), "auto", "auto")
    shape = shape_of(files.GPT_OSS_120B)
    size = sum(kept.precision.bytes_of(part, 1) for part in shape.parts()) / (1 << 30)
    assert size == pytest.approx(64.38, rel=0.005)  # "Model loading took": vllm-project/vllm issue 33155


def test_attention_that_is_left_as_it_was_takes_its_bits() -> None:
    scheme = {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.0.self_attn.q_proj"]}
    assert "attention" not in kept_of(Fields({"quantization_config": scheme}), "auto", "auto").precision.quantized


def test_options_stand_above_the_file() -> None:
    fields = Fields({"quantization_config": {"quant_method": "unheard-of"}})
    assert kept_of(fields, "int4", "fp8").kv_bytes == 1
    assert kept_of(fields, "fp32", "auto").kv_bytes == 4
    with pytest.raises(ConfigFault, match="quant_method 'unheard-of' is not known here: say --dtype"):
        kept_of(fields, "auto", "auto")
