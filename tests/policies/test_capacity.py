"""What fits: the arithmetic of one GPU, and what would help."""

from dataclasses import replace

import pytest

from policies.capacity import (
    CONTEXT_GIB,
    GIB,
    GRAPHS_GIB,
    LINEAR,
    NCCL_GIB,
    Plan,
    Pool,
    Precision,
    capacity,
    helped,
    longest,
    parts_of,
    problem_of,
    remedies,
    stages,
    usual_sequences,
)
from policies.layers import Block, Cache, Heads, Latent, Layer, Part, Shape, State, attention, feed, norms

FULL, WINDOW = Heads(8, 256), Heads(8, 256, window=1024)
PLAN = Plan(80)


def layers(*caches: Cache | None) -> tuple[Layer, ...]:
    """Build layers that weigh little and keep something."""
    return tuple(Layer(cache, Block((Part("attention", 1000, 8),), 100, 10), feed(10, 10)) for cache in caches)


def model(*caches: Cache | None, weight: int = 1 << 30, is_tied: bool = False) -> Shape:
    """Build a model whose embedding weighs 2 GiB in 16 bits."""
    embedding = Part("embedding", weight)
    return Shape("model", 64, 1000, 8, layers(*caches), (embedding,), (norms(64), embedding), is_tied)


def llama(count: int = 32) -> Shape:
    """Build Llama 3.1 with 8 B parameters."""
    layer = Layer(Heads(8, 256), attention(4096, 32, 8, 128, 128), feed(4096, 14336))
    embedding = Part("embedding", 128256 * 4096)
    return Shape("llama", 4096, 128256, 32, (layer,) * count, (embedding,), (norms(4096), embedding))


# One GPU.


def test_what_is_left_is_for_the_cache() -> None:
    sheet = capacity(llama(), PLAN, [8192])
    assert sheet.usable_gib == 72
    assert sheet.weights_gib == pytest.approx(14.96, abs=0.01)
    assert sheet.overhead_gib == CONTEXT_GIB + GRAPHS_GIB
    spent = sheet.weights_gib + sheet.activations_gib + sheet.overhead_gib
    assert sheet.room_gib == pytest.approx(72 - spent)


def test_agrees_with_what_vllm_logged_for_llama_3_8b() -> None:
    # vllm-project/vllm pull request 10511: H100, 256 sequences; 53.29 and 58.97 GiB for the cache
    one = capacity(llama(), Plan(79.22), [8192])
    two = capacity(llama(), Plan(79.22, tp=2), [8192])
    assert one.room_gib == pytest.approx(53.29, rel=0.02)
    assert two.room_gib == pytest.approx(58.97, rel=0.02)


def test_the_cache_is_counted_in_whole_blocks_as_vllm_counts_them() -> None:
    # seen: 64 MiB, blocks of 32, two layers with one head of 32 in float32: 4,096 blocks, 131,072 tokens
    pool = Pool(layers(Heads(1, 64), Heads(1, 64)), Plan(80, block=32, kv_bytes=4))
    assert (64 << 20) // pool.block_bytes == 4096
    assert pool.blocks_of(131072) == 4096
    assert (pool.blocks_of(1), pool.blocks_of(33)) == (1, 2)


def test_several_gpus_talk_to_each_other_and_that_takes_memory() -> None:
    assert capacity(llama(), replace(PLAN, tp=2), [1]).overhead_gib == CONTEXT_GIB + GRAPHS_GIB + NCCL_GIB


def test_the_sampler_counts_where_it_takes_more_than_a_chunk() -> None:
    few = capacity(llama(), replace(PLAN, sequences=1), [1]).activations_gib
    many = capacity(llama(), replace(PLAN, sequences=1024), [1]).activations_gib
    assert few == pytest.approx(8192 * (3 * 14336 + 4 * 4096) * 2 * 1.1 / GIB)
    assert many == pytest.approx(1024 * 128256 * 40 * 1.1 / GIB)


def test_more_sequences_run_at_once_on_large_gpus() -> None:
    assert (usual_sequences(79.2), usual_sequences(24)) == (1024, 256)


def test_only_what_is_quantized_takes_fewer_bits() -> None:
    sheet = capacity(llama(), replace(PLAN, precision=Precision(16, 8, LINEAR)), [1])
    assert sheet.weights_gib == pytest.approx((6_979_321_856 + 2 * 525_336_576 * 2) / GIB, rel=1e-3)


def test_a_true_size_stands_for_the_counted_one() -> None:
    assert capacity(llama(), replace(PLAN, weight_bytes=10 * GIB), [1]).weights_gib == pytest.approx(10)
    assert capacity(llama(), replace(PLAN, tp=2, weight_bytes=10 * GIB), [1]).weights_gib == pytest.approx(5, rel=1e-3)


# Rows.


def test_a_row_says_how_many_sequences_fit_and_what_one_leaves() -> None:
    short, long = capacity(llama(), PLAN, [8192, 131072]).rows
    assert (short.sequences, long.sequences) == (54, 3)
    assert (short.gib_per_sequence, long.gib_per_sequence) == (1.0, 16.0)
    assert short.tokens == long.tokens
    assert not short.is_tight


def test_a_margin_below_a_tenth_of_what_is_usable_is_tight() -> None:
    shape = model(*[FULL] * 32)
    rows = {memory: capacity(shape, Plan(memory), [8192]).rows[0] for memory in (6.0, 7.0, 30.0)}
    assert (rows[6.0].sequences, rows[6.0].is_tight) == (0, True)
    assert rows[6.0].margin < 0
    assert (rows[7.0].sequences, rows[7.0].is_tight, rows[30.0].is_tight) == (0, True, False)


def test_nothing_fits_where_weights_take_all() -> None:
    row = capacity(model(FULL, weight=1 << 40), PLAN, [16]).rows[0]
    assert (row.sequences, row.tokens) == (0, 0)


# The paged cache.


def test_layers_of_one_kind_share_one_block() -> None:
    pool = Pool(layers(*[FULL] * 32), PLAN)
    assert pool.block_bytes == 16 * 131072
    assert (pool.blocks_of(4096), pool.blocks_of_chunk(4096), pool.growing_page_tokens) == (256, 0, 16)


def test_a_window_takes_its_tokens_and_a_block_for_its_ends() -> None:
    pool = Pool(layers(*[WINDOW] * 8), PLAN)
    assert [pool.blocks_of(context) for context in (512, 1024, 1025, 100_000)] == [32, 64, 65, 65]
    assert [pool.blocks_of_chunk(context) for context in (1024, 2048, 100_000)] == [0, 128, 512]
    assert pool.growing_page_tokens == 0


def test_kinds_of_layers_are_grouped_by_the_rarer_and_padded() -> None:
    # as Gemma 3 with 27 B: 10 full, 52 with a window in 6 groups of 10, the last with 8 layers of padding
    pool = Pool(layers(*[FULL] * 10, *[WINDOW] * 52), PLAN)
    assert pool.block_bytes == 10 * 16 * 4096
    assert pool.blocks_of(131072) == 8192 + 6 * 65


def test_kinds_that_are_nearly_as_many_are_padded_to_the_more() -> None:
    pool = Pool(layers(*[FULL] * 13, *[WINDOW] * 12), PLAN)
    assert pool.block_bytes == 13 * 16 * 4096
    assert pool.blocks_of(2048) == 128 + 65


def test_pages_grow_to_the_size_of_a_state() -> None:
    # vLLM logs 1,568 tokens for a Qwen3 of 27 B with a cache of 8 bits: a delta net's state beside 4 heads of 256
    state = State(48 * 128 * 128, (2 * 16 * 128 + 48 * 128) * 3)
    pool = Pool(layers(*[Heads(4, 512)] * 16, *[state] * 48), Plan(80, kv_bytes=1))
    assert pool.growing_page_tokens == 1568
    assert pool.blocks_of(1568) == 1 + 3 * 2
    assert pool.blocks_of(1569) == 2 + 3 * 2


def test_a_model_of_states_alone_takes_the_same_at_any_length() -> None:
    pool = Pool(layers(*[State(1000, 10)] * 4), PLAN)
    assert (pool.blocks_of(1), pool.blocks_of(1 << 20)) == (2, 2)
    assert pool.block_bytes == 4 * 4020


def test_pages_of_smaller_heads_hold_more_tokens() -> None:
    pool = Pool(layers(FULL, Heads(4, 256, window=64)), PLAN)
    assert pool.blocks_of(65) == 5 + 3


# Splitting.


@pytest.mark.parametrize(
    ("count", "pp", "sizes"), [(32, 1, [32]), (32, 4, [8, 8, 8, 8]), (61, 4, [15, 15, 16, 15]), (7, 4, [2, 2, 2, 1])]
)
def test_layers_are_split_evenly_and_the_last_stage_has_no_more(count: int, pp: int, sizes: list[int]) -> None:
    split = stages(count, pp)
    assert [part.stop - part.start for part in split] == sizes
    assert (split[0].start, split[-1].stop) == (0, count)


def test_a_tied_head_is_a_copy_only_at_another_stage() -> None:
    kinds = [part.kind for part in parts_of(model(FULL, FULL, is_tied=True), PLAN, 0)]
    assert kinds.count("embedding") == 1
    two = replace(PLAN, pp=2)
    for stage in (0, 1):
        kinds = [part.kind for part in parts_of(model(FULL, FULL, is_tied=True), two, stage)]
        assert kinds.count("embedding") == 1
    middle = parts_of(model(FULL, FULL, FULL), replace(PLAN, pp=3), 1)
    assert "embedding" not in [part.kind for part in middle]


def test_the_stage_with_least_room_is_the_one_that_counts() -> None:
    sheet = capacity(llama(33), replace(PLAN, pp=2), [8192])
    one = capacity(llama(33), PLAN, [8192])
    assert sheet.weights_gib > one.weights_gib / 2
    assert sheet.rows[0].gib_per_sequence == pytest.approx(17 / 32)


def test_a_stage_that_keeps_nothing_limits_no_cache() -> None:
    split = model(FULL, None)
    row = capacity(split, replace(PLAN, pp=2), [1024]).rows[0]
    assert row.sequences == pytest.approx(capacity(model(FULL, FULL), replace(PLAN, pp=2), [1024]).rows[0].sequences)
    assert capacity(split, Plan(0.1, pp=2), [1024]).rows[0].sequences == 0


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        (Plan(80, tp=3), "8 attention heads do not divide by --tp 3"),
        (Plan(80, tp=4), "6 KV heads can neither be split over nor copied evenly to --tp 4"),
        (Plan(80, tp=2, pp=3), "--pp 3 is more than the 2 layers"),
        (Plan(80, tp=2), None),
    ],
)
def test_says_why_a_model_cannot_be_split(plan: Plan, problem: str | None) -> None:
    assert problem_of(model(Heads(6, 8), Latent(8)), plan) == problem


# Remedies.


def test_names_the_single_changes_that_help() -> None:
    shape = model(*[FULL] * 32, weight=5 << 30)
    found = {remedy.change: remedy for remedy in remedies(shape, replace(PLAN, memory_gib=40), 131072)}
    assert list(found) == ["--kv-dtype fp8", "--tp 2"]
    assert found["--tp 2"].plan.gpus == 2
    assert not any(remedy.row.is_tight for remedy in found.values())


def test_names_two_changes_where_one_does_not_help() -> None:
    plan = Plan(8.5, tp=8)
    assert [remedy.change for remedy in remedies(model(FULL), plan, 1 << 24)] == ["--kv-dtype fp8 --utilization 0.95"]


def test_offers_a_pipeline_only_where_layers_cannot_be_split_further() -> None:
    shape = model(*[Latent(576)] * 32, weight=1 << 30)
    tight = Plan(10, tp=8, kv_bytes=1.0, precision=Precision(16, 8, LINEAR), batched_tokens=2048, utilization=0.95)
    assert [remedy.change for remedy in remedies(shape, tight, 1 << 19)] == ["--pp 2"]


def test_nothing_helps_what_is_far_too_large() -> None:
    assert helped(model(FULL, weight=1 << 50), PLAN, [1024, 2048]) == (1024, [])


def test_helps_the_longest_context_that_can_be_helped() -> None:
    shape = model(*[FULL] * 32, weight=5 << 30)
    context, found = helped(shape, replace(PLAN, memory_gib=40), [131072, 1 << 40])
    assert context == 131072
    assert found == remedies(shape, replace(PLAN, memory_gib=40), 131072)


def test_finds_the_longest_context_with_margin() -> None:
    shape, plan = model(*[FULL] * 32, weight=5 << 30), replace(PLAN, memory_gib=40)
    length = longest(shape, plan, 131072)
    assert not capacity(shape, plan, [length]).rows[0].is_tight
    assert capacity(shape, plan, [length + 16]).rows[0].is_tight
    assert longest(shape, plan, 16) == 16
    assert longest(model(FULL, weight=1 << 50), plan, 131072) == 0
