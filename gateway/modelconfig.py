"""Read a model's `config.json`, as Hugging Face keeps it, into the shape that memory is counted from.

What sort each layer is comes from, in this order: a list of types (`layer_types`, `layers_block_type`), a pattern of
letters (Nemotron-H), numbers of the layers (Kimi Linear, Bamba) or a period (Jamba, Qwen3-Next), or the rule that a
family's code has where its older files say nothing (Gemma 2 and 3, Llama 4, Cohere 2). A file that cannot be understood
is refused, with the field and its value; none is guessed at.
"""

from collections.abc import Mapping
from pathlib import Path

from gateway.modelblocks import ATTENTION, KNOWN, feed_of, mixer_of
from gateway.modelfile import ConfigFault, Fields, read_json, shown
from policies.layers import Layer, Part, Shape, norms

MAX_LAYERS = 4096
NESTS = ("text_config", "language_config", "llm_config", "thinker_config")
LEFT_OUTSIDE = ("torch_dtype", "dtype", "tie_word_embeddings", "quantization_config")
"""What a nested part may leave to the outer one."""
INDEX = "model.safetensors.index.json"
STRANGE = ("falcon_h1", "zamba", "zamba2", "recurrent_gemma", "rwkv", "deepseek_v4", "minimax", "minimax_text_01")
"""Families that keep something that is not counted here."""
TIED = {
    *("gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n_text", "gemma4_text", "gpt2", "cohere", "cohere2"),
    *("falcon", "bloom", "gpt_bigcode", "lfm2"),
}
"""Families whose head is the embedding unless the file says otherwise."""
EVERY = {"gemma2": 2, "gemma3_text": 6, "gemma3": 6, "cohere2": 4, "llama4_text": 4, "llama4": 4}
"""Families in which each n-th layer sees everything and the others a window."""


def index_bytes(config: Path) -> int | None:
    """Give the size of the weights by the index beside a config.json; None: there is none that says it."""
    file = config.with_name(INDEX)
    if not file.is_file():
        return None
    metadata = Fields(read_json(file)).inner("metadata")
    return metadata.whole("total_size", 0) or None if metadata else None


def text_of(content: Mapping[str, object]) -> Fields:
    """Give the part that describes the language model: of a multimodal model it is nested, once or twice."""
    for name in NESTS:
        if isinstance(inner := content.get(name), dict):
            left = {field: content[field] for field in LEFT_OUTSIDE if field in content}
            return text_of({**left, **inner})
    return Fields(content)


def shape_of(content: Mapping[str, object]) -> Shape:
    """Read the shape of a model.

    Raises:
        ConfigFault: a field is missing, wrong, or of a kind that is not known here.
    """
    fields = text_of(content)
    family = fields.word("model_type")
    if fields.flag("is_encoder_decoder"):
        raise ConfigFault(f"model_type {family}: models with an encoder keep another cache; only decoders are counted")
    if family in STRANGE:
        raise ConfigFault(f"model_type {family}: its layers keep something that is not counted here")
    hidden, vocab = fields.whole("hidden_size", least=1), fields.whole("vocab_size", least=1)
    count = fields.whole("num_hidden_layers", least=1)
    if count > MAX_LAYERS:
        raise ConfigFault(f"num_hidden_layers is {count}, more than {MAX_LAYERS}")
    sorts = sorts_of(fields, family, count)
    is_tied = fields.flag("tie_word_embeddings", family in TIED)
    shared = count - fields.whole("num_kv_shared_layers", 0)
    layers = tuple(_layer(fields, family, number, sort, keeps=number < shared) for number, sort in enumerate(sorts))
    if not any(layer.cache for layer in layers):
        raise ConfigFault("has no layer that keeps anything of a sequence")
    embedding = Part("embedding", vocab * hidden)
    vision = Fields(content).inner("vision_config")
    seen = () if vision is None else (_vision(vision),)
    return Shape(
        name=_name(content, fields),
        hidden=hidden,
        vocab=vocab,
        heads=fields.whole("num_attention_heads", least=1) if any(sort in ATTENTION for sort in sorts) else 0,
        layers=layers,
        embeds=(embedding, *seen),
        ends=(norms(hidden), embedding),
        is_tied=is_tied,
        max_context=fields.whole("max_position_embeddings", 0) or None,
    )


def _name(content: Mapping[str, object], fields: Fields) -> str:
    """Name a model for the sheet's title."""
    known = Fields(content).row("architectures")
    return str(known[0]) if isinstance(known, list) and known else fields.word("model_type", "model")


def _vision(fields: Fields) -> Part:
    """Estimate a vision tower: attention and feed-forward of its layers, copied to every GPU."""
    hidden = fields.whole("hidden_size", fields.whole("embed_dim", 0))
    depth = fields.whole("num_hidden_layers", fields.whole("depth", 0))
    return Part("vision", depth * (4 * hidden * hidden + 2 * hidden * fields.whole("intermediate_size", 4 * hidden)), 1)


def sorts_of(fields: Fields, family: str, count: int) -> list[str]:
    """Say what sort each layer is, in one of the KNOWN words."""
    row = fields.row("layer_types") or fields.row("layers_block_type") or list(fields.word("hybrid_override_pattern"))
    if row:
        sorts = [str(each) for each in row if each != "|"]
        if len(sorts) != count:
            raise ConfigFault(f"has types of {len(sorts)} layers, and num_hidden_layers {count}")
        if unknown := [each for each in sorts if each not in KNOWN]:
            raise ConfigFault(f"has layers of type {shown(unknown[0])}, which is not known here")
        return sorts
    if (linear := fields.inner("linear_attn_config")) is not None:  # Kimi Linear; counts from 1
        full = linear.row("full_attn_layers") or ()
        return ["full_attention" if number + 1 in full else "linear_attention" for number in range(count)]
    if "attn_layer_period" in fields:
        period, offset = fields.whole("attn_layer_period", least=1), fields.whole("attn_layer_offset", 0)
        return ["attention" if number % period == offset else "mamba" for number in range(count)]
    if "attn_layer_indices" in fields:
        full = fields.row("attn_layer_indices") or ()
        return ["attention" if number in full else "mamba" for number in range(count)]
    if "full_attention_interval" in fields:
        every = fields.whole("full_attention_interval", least=1)
        return ["linear_attention" if (number + 1) % every else "full_attention" for number in range(count)]
    if family in ("mamba", "mamba2", "falcon_mamba"):
        return ["mamba"] * count
    return _windowed(fields, family, count)


def _windowed(fields: Fields, family: str, count: int) -> list[str]:
    """Say which layers of a model of attention alone see but a window."""
    window = fields.raw("attention_chunk_size" if family.startswith("llama4") else "sliding_window")
    if window is None or not fields.flag("use_sliding_window", True):
        return ["full_attention"] * count
    if "use_sliding_window" in fields:  # Qwen: the first layers see everything
        first = fields.whole("max_window_layers", 0)
        return ["full_attention" if number < first else "sliding_attention" for number in range(count)]
    every = fields.whole("sliding_window_pattern", EVERY.get(family, 0))
    return ["sliding_attention" if not every or (number + 1) % every else "full_attention" for number in range(count)]


def _layer(fields: Fields, family: str, number: int, sort: str, *, keeps: bool) -> Layer:
    """Read one layer."""
    mixer, cache = mixer_of(fields, family, sort)
    return Layer(cache if keeps else None, mixer, feed_of(fields, family, number, sort))
