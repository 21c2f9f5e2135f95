"""The shape of a language model, as far as memory goes: what its layers weigh, and what each keeps of a sequence.

A model is an embedding, a row of layers and a head. A layer has two blocks, one that mixes tokens and one that feeds
each forward, and may keep something of every sequence that runs:

    Heads    keys and values of all tokens, or of the last `window`; split over GPUs by head, and where there are more
             GPUs than heads each of them keeps a whole one
    Latent   one compressed vector a token (multi-head latent attention); every GPU keeps all of it
    State    the same few bytes however long the sequence is (linear attention, Mamba, convolutions)

Weights are counted from the shapes, family by family; biases, thousandths of a percent, are left out. The formulas:

    attention    hidden x heads x head, twice (query, output), and hidden x kv_heads x head, twice (key, value)
    latent       hidden x q_rank + q_rank x heads x (nope + rope) + hidden x (kv_rank + rope)
                 + kv_rank x heads x (nope + v) + heads x v x hidden; without q_rank: hidden x heads x (nope + rope)
    feed         3 x hidden x inner (gate, up, down), 2 where there is no gate
    experts      as many feeds, and a router of hidden x experts
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal["embedding", "attention", "feed", "experts", "router", "norm", "vision"]
"""What a part is for: quantization is said by kind."""

MANY = 1 << 30  # shards: more GPUs than anybody has


class Part(NamedTuple):
    """A tensor, or some of one kind."""

    kind: Kind
    values: int
    shards: int = MANY
    """Over how many GPUs it can be split; beyond that it is copied."""

    def values_per_gpu(self, tp: int) -> float:
        """Give what one of `tp` GPUs holds."""
        return self.values / min(tp, self.shards)


class Heads(NamedTuple):
    """Keys and values of attention."""

    kv_heads: int
    head_values: int
    """Of a key and a value together."""
    window: int | None = None
    """In tokens; None: of the whole sequence."""

    def bytes_per_token(self, value_bytes: float, tp: int = 1) -> float:
        """Give what one GPU keeps of a token in one layer."""
        return max(1.0, self.kv_heads / tp) * self.head_values * value_bytes


class Latent(NamedTuple):
    """The compressed vector of multi-head latent attention."""

    values: int
    index_bytes: int = 0
    """Of the key of a sparse indexer (DeepSeek-V3.2), which has a type of its own."""
    window: int | None = None

    def bytes_per_token(self, value_bytes: float, tp: int = 1) -> float:
        """Give what each GPU keeps of a token in one layer."""
        return self.values * value_bytes + self.index_bytes


class State(NamedTuple):
    """What a recurrent layer keeps of a sequence, whatever its length."""

    recurrent_values: int
    conv_values: int
    """The inputs that a short convolution looks back at, in 16 bits."""
    recurrent_bytes: int = 4
    """A value: engines keep the recurrent state in float32 unless the model says otherwise."""

    def bytes_per_sequence(self, tp: int = 1) -> float:
        """Give what one GPU keeps of a sequence in one layer."""
        return (self.recurrent_values * self.recurrent_bytes + self.conv_values * 2) / tp


Cache = Heads | Latent | State


class Block(NamedTuple):
    """Half a layer: its weights, and the values per token that are alive at once while it runs."""

    parts: tuple[Part, ...]
    split_width: int = 0
    """Values shared out among the GPUs."""
    whole_width: int = 0
    """Values that each GPU holds."""


class Layer(NamedTuple):
    """One layer."""

    cache: Cache | None
    """None: it keeps nothing, or reads what another layer keeps."""
    mixer: Block
    feed: Block


@dataclass(frozen=True, slots=True)
class Shape:
    """A model."""

    name: str
    hidden: int
    vocab: int
    heads: int
    """Of queries; 0: no attention."""
    layers: tuple[Layer, ...]
    embeds: tuple[Part, ...]
    """Before the layers: on the first GPUs of a pipeline."""
    ends: tuple[Part, ...]
    """After the layers: on the last. A tied head is here only where the pipeline has more than one stage."""
    is_tied: bool = False
    """Whether the head is the embedding once more."""
    max_context: int | None = None

    def parts(self) -> Iterable[Part]:
        """Give all weights, each once."""
        yield from self.embeds
        for layer in self.layers:
            yield from layer.mixer.parts
            yield from layer.feed.parts
        yield from (part for part in self.ends if not (self.is_tied and part.kind == "embedding"))

    def params(self) -> int:
        """Count the parameters."""
        return sum(part.values for part in self.parts())

    def bytes_per_token(self, value_bytes: float, *, past_windows: bool = False) -> float:
        """Give what all layers keep of one token, without copies; past the windows only what still grows."""
        kept = (layer.cache for layer in self.layers if isinstance(layer.cache, Heads | Latent))
        return sum(cache.bytes_per_token(value_bytes) for cache in kept if not (past_windows and cache.window))

    def state_bytes_per_sequence(self) -> float:
        """Give what all recurrent layers keep of one sequence, without copies."""
        return sum(layer.cache.bytes_per_sequence() for layer in self.layers if isinstance(layer.cache, State))


def attention(hidden: int, heads: int, kv_heads: int, key: int, value: int, *, is_gated: bool = False) -> Block:
    """Build grouped-query attention.

    Args:
        hidden: Width of the model.
        heads: Of queries.
        kv_heads: Of keys and values.
        key: Width of a head of queries and keys.
        value: Width of a head of values.
        is_gated: Whether the output has a gate as wide as the queries (Qwen3-Next).
    """
    query = Part("attention", hidden * heads * key * (2 if is_gated else 1), heads)
    pair = Part("attention", hidden * kv_heads * (key + value), kv_heads)
    output = Part("attention", heads * value * hidden, heads)
    return Block((query, pair, output), heads * (key + value) + kv_heads * (key + value))


def latent(hidden: int, heads: int, q_rank: int | None, kv_rank: int, nope: int, rope: int, value: int) -> Block:
    """Build multi-head latent attention; the projections into the latent space are on every GPU."""
    query = [Part("attention", hidden * heads * (nope + rope), heads)]
    if q_rank:
        query = [Part("attention", hidden * q_rank, 1), Part("attention", q_rank * heads * (nope + rope), heads)]
    down = Part("attention", hidden * (kv_rank + rope), 1)
    up = Part("attention", kv_rank * heads * (nope + value), heads)
    output = Part("attention", heads * value * hidden, heads)
    return Block((*query, down, up, output), heads * (2 * (nope + rope) + 2 * value), kv_rank + rope + (q_rank or 0))


def feed(hidden: int, inner: int, *, is_gated: bool = True) -> Block:
    """Build a feed-forward block; 0 inner: none."""
    if not inner:
        return Block(())
    matrices = 3 if is_gated else 2
    return Block((Part("feed", matrices * hidden * inner),), matrices * inner)


def experts(hidden: int, inner: int, count: int, active: int, *, shared_inner: int = 0, is_gated: bool = True) -> Block:
    """Build a mixture of experts.

    Args:
        hidden: Width of the model.
        inner: Width of an expert.
        count: Of experts.
        active: Of experts that a token goes to.
        shared_inner: Width of what every token goes through as well.
        is_gated: Whether an expert has a gate.
    """
    matrices = 3 if is_gated else 2
    shared = feed(hidden, shared_inner, is_gated=is_gated)
    parts = (Part("experts", matrices * count * hidden * inner), Part("router", hidden * count, 1), *shared.parts)
    return Block(parts, matrices * active * inner + shared.split_width, active * hidden)


def norms(hidden: int, count: int = 1) -> Part:
    """Build the scales of norms, which every GPU holds."""
    return Part("norm", hidden * count, 1)
