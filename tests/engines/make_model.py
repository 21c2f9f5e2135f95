"""Make a Llama of random weights that vLLM and llama.cpp can serve, with the same token ids in both: no downloads.

    PYTHON make_model.py DIRECTORY --ctx 2048

PYTHON is that of an engine's virtual environment, with numpy, tokenizers, safetensors and gguf. What it says is
nonsense, and at temperature 0 always the same nonsense. The end-of-text token has a logit of 0, so that hardly an
answer ends before `max_tokens`.
"""

import argparse
import json
import sysconfig
from pathlib import Path

import gguf  # type: ignore[import-not-found, unused-ignore]
import numpy as np  # type: ignore[import-not-found, unused-ignore]
from safetensors.numpy import save_file  # type: ignore[import-not-found, unused-ignore]
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

VOCABULARY = 4096
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
WORDS = (  # how llama.cpp's "qwen2" splits a text into words
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEMPLATE = """\
{%- for message in messages %}
    {%- if loop.first and (tools or message.role != 'system') %}
        {{- '<|im_start|>system\\n' }}
        {{- message.content if message.role == 'system' else 'You are a helpful assistant.' }}
        {%- for tool in tools or [] %}
            {{- '\\n# Tool\\n' + (tool | tojson) }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
    {%- if not (loop.first and tools and message.role == 'system') %}
        {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>' + (call.function | tojson) + '</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""


def make_tokenizer() -> Tokenizer:
    """Train a byte-level BPE on the standard library: English and code that is on every machine."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:60]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((path.read_text(errors="ignore")[:20000] for path in sources), trainer)
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIALS])
    return tokenizer


def make_weights(shape: argparse.Namespace, end: int) -> dict[str, np.ndarray]:
    """Draw the weights, under the names of Hugging Face's Llama; embeddings are tied."""
    chance = np.random.default_rng(0)

    def drawn(*size: int) -> np.ndarray:
        return (chance.standard_normal(size) * 0.05).astype(np.float32)

    hidden, inner = shape.hidden, 2 * shape.hidden
    kv_size = shape.kv_heads * shape.hidden // shape.heads
    ones = np.ones(hidden, np.float32)
    embeddings = drawn(VOCABULARY, hidden)
    embeddings[end] = 0
    weights = {"model.embed_tokens.weight": embeddings, "model.norm.weight": ones.copy()}
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        weights |= {
            f"{prefix}input_layernorm.weight": ones.copy(),
            f"{prefix}post_attention_layernorm.weight": ones.copy(),
            f"{prefix}self_attn.q_proj.weight": drawn(hidden, hidden),
            f"{prefix}self_attn.k_proj.weight": drawn(kv_size, hidden),
            f"{prefix}self_attn.v_proj.weight": drawn(kv_size, hidden),
            f"{prefix}self_attn.o_proj.weight": drawn(hidden, hidden),
            f"{prefix}mlp.gate_proj.weight": drawn(inner, hidden),
            f"{prefix}mlp.up_proj.weight": drawn(inner, hidden),
            f"{prefix}mlp.down_proj.weight": drawn(hidden, inner),
        }
    return weights


def write_huggingface(
    directory: Path, shape: argparse.Namespace, tokenizer: Tokenizer, weights: dict[str, np.ndarray]
) -> None:
    """Write what vLLM reads."""
    end, pad = tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": 2 * shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.hidden // shape.heads,
        "max_position_embeddings": shape.ctx,
        "vocab_size": VOCABULARY,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "eos_token_id": end,
        "pad_token_id": pad,
    }
    words = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": shape.ctx,
        "clean_up_tokenization_spaces": False,
    }
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    (directory / "tokenizer_config.json").write_text(json.dumps(words, indent=1))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": end, "pad_token_id": pad}))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})


GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(path: Path, shape: argparse.Namespace, tokenizer: Tokenizer, weights: dict[str, np.ndarray]) -> None:
    """Write what llama.cpp reads."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("random")
    writer.add_context_length(shape.ctx)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(2 * shape.hidden)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(shape.hidden // shape.heads)
    writer.add_vocab_size(VOCABULARY)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    words = {at: word for word, at in tokenizer.get_vocab(with_added_tokens=True).items()}
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    kinds = [
        gguf.TokenType.UNUSED
        if at not in words
        else gguf.TokenType.CONTROL
        if words[at] in SPECIALS
        else gguf.TokenType.NORMAL
        for at in range(VOCABULARY)
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([words.get(at, f"[unused {at}]") for at in range(VOCABULARY)])
    writer.add_token_types(kinds)
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_eos_token_id(tokenizer.token_to_id("<|im_end|>"))
    writer.add_pad_token_id(tokenizer.token_to_id("<|endoftext|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    writer.add_tensor("token_embd.weight", weights["model.embed_tokens.weight"])
    writer.add_tensor("output_norm.weight", weights["model.norm.weight"])
    heads = {"self_attn.q_proj": shape.heads, "self_attn.k_proj": shape.kv_heads}
    for layer in range(shape.layers):
        for theirs, name in GGUF_NAMES.items():
            tensor = weights[f"model.layers.{layer}.{theirs}.weight"]
            if theirs in heads:  # llama.cpp turns neighbours, Hugging Face halves: both of one head
                halves = tensor.reshape(heads[theirs], 2, -1, tensor.shape[1])
                tensor = halves.swapaxes(1, 2).reshape(tensor.shape)
            writer.add_tensor(f"blk.{layer}.{name}.weight", tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--ctx", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--heads", type=int, default=2)  # vLLM on a CPU wants heads of 32, 64, 80 ... numbers
    parser.add_argument("--kv-heads", type=int, default=1)
    shape = parser.parse_args()
    shape.directory.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    end = tokenizer.token_to_id("<|im_end|>")
    assert end is not None
    weights = make_weights(shape, end)
    write_huggingface(shape.directory, shape, tokenizer, weights)
    write_gguf(shape.directory / "model.gguf", shape, tokenizer, weights)  # last: it tells that all is there


if __name__ == "__main__":
    main()
