"""What a model weighs, and what it keeps of a token: counted from shapes alone."""

from policies.layers import Block, Heads, Latent, Layer, Part, Shape, State, attention, experts, feed, latent, norms


def shape(layers: int = 2, *, is_tied: bool = False, cache: Heads | Latent | State | None = None) -> Shape:
    """Build a model of 8 values and 32 words, with 4 heads of 2."""
    layer = Layer(cache or Heads(2, 4), attention(8, 4, 2, 2, 2), feed(8, 16))
    embedding = Part("embedding", 8 * 32)
    return Shape("small", 8, 32, 4, (layer,) * layers, (embedding,), (norms(8), embedding), is_tied)


def test_counts_the_head_unless_it_is_the_embedding_once_more() -> None:
    layer = 8 * 8 * 2 + 8 * 4 * 2 + 3 * 8 * 16
    assert shape().params() == 2 * layer + 2 * 256 + 8
    assert shape(is_tied=True).params() == 2 * layer + 256 + 8


def test_a_part_is_copied_to_gpus_beyond_those_it_can_be_split_over() -> None:
    part = Part("attention", 64, 4)
    assert [part.values_per_gpu(tp) for tp in (1, 2, 4, 8)] == [64, 32, 16, 16]


def test_each_gpu_keeps_at_least_one_whole_head() -> None:
    heads = Heads(2, 256)
    assert [heads.bytes_per_token(2, tp) for tp in (1, 2, 4)] == [1024, 512, 512]


def test_each_gpu_keeps_the_whole_latent_vector_and_the_key_of_the_indexer() -> None:
    assert [Latent(576).bytes_per_token(2, tp) for tp in (1, 8)] == [1152, 1152]
    assert Latent(576, index_bytes=132).bytes_per_token(1) == 576 + 132


def test_a_state_is_split_among_gpus_and_does_not_grow() -> None:
    state = State(recurrent_values=1000, conv_values=30)
    assert [state.bytes_per_sequence(tp) for tp in (1, 2)] == [4060, 2030]
    whole = shape(3, cache=state)
    assert whole.state_bytes_per_sequence() == 3 * 4060
    assert whole.bytes_per_token(2) == 0


def test_past_the_windows_only_full_attention_grows() -> None:
    full = shape()
    windowed = shape(cache=Heads(2, 4, window=128))
    assert (full.bytes_per_token(2), full.bytes_per_token(2, past_windows=True)) == (32, 32)
    assert (windowed.bytes_per_token(2), windowed.bytes_per_token(2, past_windows=True)) == (32, 0)
    assert full.state_bytes_per_sequence() == 0


def test_a_gate_doubles_the_query() -> None:
    plain, gated = (attention(8, 4, 2, 2, 2, is_gated=gate) for gate in (False, True))
    assert gated.parts[0].values == 2 * plain.parts[0].values
    assert gated.parts[1:] == plain.parts[1:]


def test_latent_attention_may_compress_its_queries_too() -> None:
    plain = latent(100, 4, None, 20, 8, 2, 8)
    ranked = latent(100, 4, 30, 20, 8, 2, 8)
    assert sum(part.values for part in plain.parts) == 100 * 40 + 100 * 22 + 20 * 4 * 16 + 32 * 100
    assert sum(part.values for part in ranked.parts) == 100 * 30 + 30 * 40 + 100 * 22 + 20 * 4 * 16 + 32 * 100
    assert [part.shards for part in ranked.parts] == [1, 4, 1, 4, 4]


def test_a_feed_without_a_gate_has_two_matrices_and_none_has_none() -> None:
    assert feed(8, 16).parts[0].values == 3 * 128
    assert feed(8, 16, is_gated=False).parts[0].values == 2 * 128
    assert feed(8, 0) == Block(())


def test_experts_have_a_router_and_what_all_share() -> None:
    block = experts(8, 4, 10, 2, shared_inner=6)
    assert [(part.kind, part.values) for part in block.parts] == [
        ("experts", 3 * 10 * 32),
        ("router", 80),
        ("feed", 3 * 48),
    ]
    assert block.split_width == 3 * 2 * 4 + 3 * 6
    assert experts(8, 4, 10, 2, is_gated=False).parts[0].values == 2 * 10 * 32
