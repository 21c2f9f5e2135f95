"""The two blocks of a layer, as a family of models builds them: what mixes tokens, and what feeds each forward."""

from math import ceil

from gateway.modelfile import ConfigFault, Fields, shown
from policies.layers import Block, Cache, Heads, Latent, Part, State, attention, experts, feed, latent, norms

FULL = {"full_attention", "attention", "global_attention", "global", "*"}
WINDOWED = {"sliding_attention", "chunked_attention", "local_attention", "local"}
ATTENTION = FULL | WINDOWED
LINEAR = {"linear_attention", "gated_deltanet"}
MAMBA = {"mamba", "mamba2", "M"}
CONV = {"conv", "short_conv"}
FEED = {"-", "mlp", "E", "moe"}
"""Layers that keep nothing."""
KNOWN = ATTENTION | LINEAR | MAMBA | CONV | FEED

UNGATED = {
    *("gpt2", "gpt_neox", "gptj", "gpt_bigcode", "starcoder2", "falcon", "phi", "opt", "bloom", "mpt"),
    *("nemotron", "nemotron_h", "arcee"),
}
"""Families whose feed-forward has two matrices, not three."""
INDEX_SCALES = 4  # bytes beside an indexer's key of one byte a value: vLLM, DeepSeek-V3.2


def mixer_of(fields: Fields, family: str, sort: str) -> tuple[Block, Cache | None]:
    """Read what mixes tokens in a layer, and what it keeps of them.

    Args:
        fields: Of the language model.
        family: Its `model_type`.
        sort: Of the layer, one of KNOWN.
    """
    hidden = fields.whole("hidden_size", least=1)
    if sort in FEED:
        return Block(()), None
    if sort in ATTENTION:
        block, cache = _attention(fields, family, hidden, is_full=sort in FULL)
    elif sort in CONV:
        block, cache = _conv(fields, hidden)
    elif sort in MAMBA:
        is_second = "mamba_heads" in fields
        block, cache = _mamba2(fields, hidden) if is_second else _mamba(fields, hidden)
    elif (kimi := fields.inner("linear_attn_config")) is not None:
        block, cache = _kimi(kimi, hidden)
    else:
        block, cache = _delta(fields, hidden)
    return block._replace(parts=(*block.parts, norms(hidden))), cache


def _attention(fields: Fields, family: str, hidden: int, *, is_full: bool) -> tuple[Block, Cache]:
    heads = fields.whole("num_attention_heads", least=1)
    window = None if is_full else _window(fields)
    if "kv_lora_rank" in fields:
        rank, rope = fields.whole("kv_lora_rank", least=1), fields.whole("qk_rope_head_dim", least=0)
        nope, value = fields.whole("qk_nope_head_dim", least=1), fields.whole("v_head_dim", least=1)
        block = latent(hidden, heads, fields.whole("q_lora_rank", 0), rank, nope, rope, value)
        index = fields.whole("index_head_dim", 0)
        return block, Latent(rank + rope, index + INDEX_SCALES if index else 0, window)
    kv_heads = fields.whole("num_key_value_heads", heads, least=1)
    if hidden < heads and "head_dim" not in fields:
        raise ConfigFault(f"hidden_size {hidden} is less than one for each of {heads} heads")
    key = fields.whole("head_dim", hidden // heads, least=1)
    if fields.flag("multi_query") and not fields.flag("new_decoder_architecture"):
        kv_heads = 1
    if is_full:  # Gemma 4: what sees everything has heads of its own
        key = fields.whole("global_head_dim", key, least=1)
        kv_heads = fields.whole("num_global_key_value_heads", kv_heads, least=1)
    value = fields.whole("v_head_dim", key, least=1)
    is_gated = fields.flag("attn_output_gate", family.startswith(("qwen3_next", "qwen3_5")))
    return attention(hidden, heads, kv_heads, key, value, is_gated=is_gated), Heads(kv_heads, key + value, window)


def _window(fields: Fields) -> int:
    if "sliding_window" in fields:
        return fields.whole("sliding_window", least=1)
    return fields.whole("attention_chunk_size", least=1)


def _delta(fields: Fields, hidden: int) -> tuple[Block, Cache]:
    """Read a gated delta net (Qwen3-Next)."""
    keys = fields.whole("linear_num_key_heads", least=1)
    values = fields.whole("linear_num_value_heads", least=1)
    key = fields.whole("linear_key_head_dim", least=1)
    value = fields.whole("linear_value_head_dim", least=1)
    kernel = fields.whole("linear_conv_kernel_dim", least=1)
    channels = 2 * keys * key + values * value
    into = Part("attention", hidden * (channels + values * value + 2 * values), keys)
    output = Part("attention", values * value * hidden, values)
    block = Block((into, output, Part("norm", channels * kernel, keys)), 2 * channels + values * value)
    return block, State(values * key * value, channels * (kernel - 1), _recurrent_bytes(fields, 4))


def _kimi(fields: Fields, hidden: int) -> tuple[Block, Cache]:
    """Read a Kimi delta attention: gates of low rank beside queries, keys, values and output."""
    heads, head = fields.whole("num_heads", least=1), fields.whole("head_dim", least=1)
    kernel, inner = fields.whole("short_conv_kernel_size", least=1), heads * head
    wide = Part("attention", 4 * hidden * inner + 2 * head * inner + hidden * heads, heads)
    block = Block((wide, Part("attention", 2 * hidden * head, 1)), 6 * inner)
    return block, State(inner * head, 3 * inner * (kernel - 1))


def _mamba2(fields: Fields, hidden: int) -> tuple[Block, Cache]:
    heads = fields.whole("mamba_heads", least=1)
    if fields.word("mamba_head") == "auto":
        inner = fields.whole("mamba_expand", 2) * hidden
    else:
        inner = heads * fields.whole("mamba_head", least=1)
    state = fields.whole("mamba_state", least=1)
    channels = inner + 2 * fields.whole("mamba_groups", 1) * state
    kernel = fields.whole("mamba_conv", 4, least=1)
    into = Part("attention", hidden * (inner + channels + heads), heads)
    output = Part("attention", inner * hidden, heads)
    block = Block((into, output, Part("norm", channels * kernel, heads)), 3 * inner + channels)
    return block, State(inner * state, channels * (kernel - 1), _recurrent_bytes(fields, 2))


def _mamba(fields: Fields, hidden: int) -> tuple[Block, Cache]:
    inner, state = fields.whole("mamba_expand", 2) * hidden, fields.whole("mamba_state", 16, least=1)
    kernel = fields.whole("mamba_conv", 4, least=1)
    rank = ceil(hidden / 16) if fields.word("mamba_rank") == "auto" else fields.whole("mamba_rank", ceil(hidden / 16))
    values = 3 * hidden * inner + inner * (2 * rank + 3 * state)
    block = Block((Part("attention", values), Part("norm", inner * kernel)), 4 * inner)
    return block, State(inner * state, inner * (kernel - 1), _recurrent_bytes(fields, 2))


def _conv(fields: Fields, hidden: int) -> tuple[Block, Cache]:
    """Read a short convolution (LFM2)."""
    kernel = fields.whole("conv_L_cache", least=1)
    return Block((Part("attention", 4 * hidden * hidden),), 4 * hidden), State(0, hidden * (kernel - 1))


def _recurrent_bytes(fields: Fields, default: int) -> int:
    """Give the bytes of a value of the state: by the file, else as engines keep it (a delta net's in float32)."""
    said = fields.word("mamba_ssm_dtype") or fields.word("mamba_ssm_cache_dtype")
    return {"float32": 4, "float16": 2, "bfloat16": 2}.get(said, default)


def feed_of(fields: Fields, family: str, number: int, sort: str) -> Block:
    """Read what feeds each token forward in a layer; the arguments are those of `mixer_of`, and its number, from 0."""
    hidden, is_gated = fields.whole("hidden_size", least=1), family not in UNGATED
    if family in ("mamba", "mamba2", "falcon_mamba") or (family == "nemotron_h" and sort not in FEED):
        return Block(())  # the mixer is all there is
    if sort in ("E", "moe") or (sort not in ("-", "mlp") and is_sparse(fields, number)):
        block = _experts(fields, family, hidden, is_gated=is_gated)
    else:
        block = feed(hidden, _inner(fields, family, number, hidden), is_gated=is_gated)
    return block._replace(parts=(*block.parts, norms(hidden)))


def is_sparse(fields: Fields, number: int) -> bool:
    """Whether a layer has experts, by the rules of all families that have some without."""
    if not fields.whole("experts", 0) or number < fields.whole("first_k_dense_replace", 0):
        return False
    if number in (fields.row("mlp_only_layers") or ()) or number < fields.whole("moe_layer_start_index", 0):
        return False
    if (chosen := fields.row("moe_layers")) is not None:  # Llama 4
        return number in chosen
    if (marks := fields.row("moe_layer_freq")) is not None:  # one for each layer
        return bool(marks[number]) if number < len(marks) else False
    if "expert_layer_period" in fields:  # Jamba
        return number % fields.whole("expert_layer_period", least=1) == fields.whole("expert_layer_offset", 0)
    for step in ("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval"):
        if step in fields:
            return (number + 1) % fields.whole(step, least=1) == 0
    return number % fields.whole("moe_layer_freq", 1, least=1) == 0


def _experts(fields: Fields, family: str, hidden: int, *, is_gated: bool) -> Block:
    count = fields.whole("experts", least=1)
    inner = fields.whole("expert_size", fields.whole("intermediate_size", 0), least=1)
    shared = fields.whole("shared_inner", 0)
    if not shared:
        shared = fields.whole("shared_experts", 1 if family.startswith("llama4") else 0) * inner
    if fields.flag("enable_moe_block"):  # Gemma 4: beside a whole feed-forward
        shared += fields.whole("intermediate_size", least=1)
    active = fields.whole("active", 1, least=1)
    return experts(hidden, inner, count, active, shared_inner=shared, is_gated=is_gated)


def _inner(fields: Fields, family: str, number: int, hidden: int) -> int:
    """Give the width of a feed-forward; a list has one for each layer."""
    if "intermediate_size_mlp" in fields:  # Llama 4: of the layers without experts
        return fields.whole("intermediate_size_mlp", least=1)
    if (several := fields.row("intermediate_size")) is not None:
        if number >= len(several) or not isinstance(width := several[number], int) or isinstance(width, bool):
            raise ConfigFault(f"intermediate_size has no whole number for layer {number}: {shown(several)}")
        return width
    inner = fields.whole("intermediate_size", 4 * hidden if family in UNGATED else None)
    if fields.flag("block_auto_adjust_ff_dim"):  # LFM2
        step = fields.whole("block_multiple_of", 256, least=1)
        inner = ceil(2 * inner / 3 / step) * step
    return inner
