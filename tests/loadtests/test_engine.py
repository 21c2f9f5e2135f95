"""EngineModel: its step times, its memory, its order, and that it agrees with an engine written for the eye."""

from itertools import count
from math import isclose

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtests.engine import EngineModel
from loadtests.profiles import PROFILES, Profile
from loadtests.sequence import Generation, Id, Refusal, What
from tests.loadtests.plain_engine import PlainEngine

BENCH = PROFILES["bench-8b"]
SMALL = Profile(
    "small", 7.0, 0.03, 5.6e-3, 0.0, 0.33, 1.3e-4, 0, is_sum=True
)  # contexts are short here: let them weigh


def blocks(*names: int) -> tuple[int, ...]:
    """Ids of blocks, each chained to all before it."""
    chain, ids = 0, []
    for name in names:
        chain = hash((chain, name))
        ids.append(chain)
    return tuple(ids)


def play(engine: EngineModel, until_idle_from: float, leap: bool = True) -> dict[tuple[What, Id], float]:
    """Run until nothing is left; give the time of each event."""
    times = {}
    now = until_idle_from
    while (end := engine.ends_at or engine.begin(now, leap)) is not None:
        now = end
        for event in engine.finish():
            times[event.what, event.id] = now
    return times


# step times


def test_decode_step_is_the_sum_formula() -> None:
    assert isclose(BENCH.step_s(32, 32 * 1000), (7 + 0.030 * 32 + 5.6e-5 * 32_000) / 1e3)


def test_mixed_step_is_the_sum_formula_for_bench_8b() -> None:
    attended = 1000 * (500 + 1000 / 2)
    expected = 7 + 0.030 * 4 + 0.033 * 1000 + 5.6e-5 * 4000 + 1.3e-6 * attended
    assert isclose(BENCH.step_s(4, 4000, 1000, attended), expected / 1e3)


def test_mixed_step_is_the_longer_of_both_for_fitted_profiles() -> None:
    h100 = PROFILES["llama-8b-h100"]
    assert isclose(h100.step_s(8, 0, 10), (6.36 + 0.0121 * 8) / 1e3)
    assert isclose(h100.step_s(8, 0, 4000), (1.37 + 0.02010 * 4008) / 1e3)


def test_one_request_takes_the_time_of_its_steps() -> None:
    engine = EngineModel(BENCH)
    assert engine.submit(Generation(1, 100, 3, 3), 5.0) is None
    prefill = (7 + 0.033 * 100 + 1.3e-6 * 100 * 50) / 1e3
    decode = [(7 + 0.030 + 5.6e-5 * (100 + made)) / 1e3 for made in (1, 2)]
    times = play(engine, 5.0)
    assert isclose(times[What.FIRST_TOKEN, 1], 5.0 + prefill)
    assert isclose(times[What.FINISHED, 1], 5.0 + prefill + sum(decode))


def test_long_prompt_is_prefilled_in_chunks_of_the_budget() -> None:
    engine = EngineModel(BENCH, max_num_batched_tokens=1000)
    engine.submit(Generation(1, 2500, 1, 1), 0.0)
    times = play(engine, 0.0)
    chunks = [(1000, 0), (1000, 1000), (500, 2000)]
    expected = sum(BENCH.step_s(0, 0, size, size * (before + size / 2)) for size, before in chunks)
    assert isclose(times[What.FINISHED, 1], expected)
    assert engine.iterations == 3


def test_slowdown_and_cold_start_stretch_steps() -> None:
    engine = EngineModel(BENCH, cold_requests=1, cold_factor=3.0)
    engine.submit(Generation(1, 100, 1, 1), 0.0)
    cold = play(engine, 0.0)[What.FINISHED, 1]
    engine.submit(Generation(2, 100, 1, 1), 1.0)
    warm = play(engine, 1.0)[What.FINISHED, 2] - 1.0
    engine.slowdown = 2.0
    engine.submit(Generation(3, 100, 1, 1), 2.0)
    slow = play(engine, 2.0)[What.FINISHED, 3] - 2.0
    assert isclose(cold, 3 * warm)
    assert isclose(slow, 2 * warm)


def test_nothing_starts_before_the_engine_is_ready() -> None:
    engine = EngineModel(BENCH, ready_at=10.0)
    engine.submit(Generation(1, 100, 1, 1), 0.0)
    assert play(engine, 0.0)[What.FINISHED, 1] > 10.0


# refusals


def test_prompt_and_output_over_the_context_are_refused() -> None:
    engine = EngineModel(BENCH, max_context_tokens=1000)
    assert engine.submit(Generation(1, 900, 50, 101), 0.0) is Refusal.CONTEXT
    assert engine.submit(Generation(2, 900, 50, 100), 0.0) is None


def test_full_queue_refuses() -> None:
    engine = EngineModel(BENCH, max_queued=2)
    assert [engine.submit(Generation(id, 10, 1, 1), 0.0) for id in range(3)] == [None, None, Refusal.QUEUE]


# the cache


def test_prefix_hits_are_full_blocks_and_leave_one_token_to_compute() -> None:
    engine = EngineModel(BENCH)
    ids = blocks(*range(4))
    engine.submit(Generation(1, 64, 1, 1, ids), 0.0)
    play(engine, 0.0)
    assert engine.cached_tokens(Generation(2, 64, 1, 1, ids)) == 48
    assert engine.cached_tokens(Generation(2, 65, 1, 1, ids)) == 64
    assert engine.cached_tokens(Generation(2, 70, 1, 1, blocks(0, 1, 9, 3))) == 32
    assert engine.cached_tokens(Generation(2, 70, 1, 1, blocks(9, 1, 2, 3))) == 0


def test_next_turn_finds_the_output_in_the_cache() -> None:
    engine = EngineModel(BENCH)
    ids = blocks(*range(6))
    engine.submit(Generation(1, 40, 41, 41, ids), 0.0)  # 81 tokens, of which the last has no KV: 5 full blocks
    play(engine, 0.0)
    assert engine.cached_tokens(Generation(2, 200, 1, 1, ids)) == 80


def test_blocks_are_shareable_only_when_their_prefill_is_done() -> None:
    engine = EngineModel(BENCH)
    ids = blocks(*range(10))
    engine.submit(Generation(1, 165, 50, 50, ids), 0.0)
    engine.begin(0.0)
    assert engine.cached_tokens(Generation(2, 165, 1, 1, ids)) == 0
    engine.finish()
    assert engine.cached_tokens(Generation(2, 165, 1, 1, ids)) == 160


def test_hits_and_queries_are_counted_in_tokens() -> None:
    engine = EngineModel(BENCH)
    ids = blocks(*range(10))
    for id in range(3):
        engine.submit(Generation(id, 165, 1, 1, ids), float(id))
        play(engine, float(id))
    assert (engine.prefix_query_tokens, engine.prefix_hit_tokens) == (3 * 165, 2 * 160)
    assert (engine.prompt_tokens, engine.generation_tokens) == (3 * 165, 3)


def test_tail_is_evicted_before_the_head() -> None:
    engine = EngineModel(BENCH, kv_tokens=16 * 10)
    old, new = blocks(*range(8)), blocks(*range(100, 104))
    engine.submit(Generation(1, 129, 1, 1, old), 0.0)
    play(engine, 0.0)
    engine.submit(Generation(2, 65, 1, 1, new), 1.0)  # 5 blocks: 2 empty ones and 3 of the old tail
    play(engine, 1.0)
    assert engine.cached_tokens(Generation(3, 150, 1, 1, old)) == 16 * 5
    assert engine.cached_tokens(Generation(3, 150, 1, 1, new)) == 16 * 4


def test_forgetting_empties_the_cache_but_not_what_is_in_use() -> None:
    engine = EngineModel(BENCH)
    gone, used = blocks(*range(4)), blocks(*range(50, 54))
    engine.submit(Generation(1, 65, 1, 1, gone), 0.0)
    play(engine, 0.0)
    engine.submit(Generation(2, 65, 99, 99, used), 1.0)
    engine.begin(1.0)
    engine.finish()
    engine.forget()
    assert engine.cached_tokens(Generation(3, 70, 1, 1, gone)) == 0
    assert engine.cached_tokens(Generation(3, 70, 1, 1, used)) == 64


# order


def test_waiting_are_admitted_first_come_first_served() -> None:
    engine = EngineModel(BENCH, max_num_seqs=1)
    for id in range(5):
        engine.submit(Generation(id, 10 + 100 * (5 - id), 5, 5), 0.0)
    times = play(engine, 0.0)
    firsts = [times[What.FIRST_TOKEN, id] for id in range(5)]
    assert firsts == sorted(firsts)


def test_preempted_newest_starts_again_and_finishes() -> None:
    engine = EngineModel(BENCH, kv_tokens=16 * 20)
    engine.submit(Generation(1, 100, 150, 150), 0.0)
    engine.submit(Generation(2, 100, 150, 150), 0.0)
    times = play(engine, 0.0)
    assert engine.preemptions >= 1
    assert (What.PREEMPTED, 1) not in times
    assert times[What.FINISHED, 1] < times[What.FINISHED, 2]
    assert engine.generation_tokens == 300
    assert repr(engine) == "<EngineModel 0 running, 0 waiting, kv 0/20>"


def test_abort_frees_memory_at_once_and_keeps_the_cache() -> None:
    engine = EngineModel(BENCH)
    ids = blocks(*range(10))
    engine.submit(Generation(1, 165, 500, 500, ids), 0.0)
    end = engine.begin(0.0)
    assert end is not None
    engine.finish()
    engine.begin(end)
    assert engine.abort(1, end + 0.001)
    assert repr(engine) == "<EngineModel 0 running, 0 waiting, kv 0/25000>"
    assert engine.cached_tokens(Generation(2, 165, 1, 1, ids)) == 160
    assert not engine.abort(1, end + 0.002)
    assert engine.finish() == []
    assert engine.begin(1.0) is None


# leaps


def test_leap_goes_to_the_next_end_and_costs_one_call() -> None:
    engine = EngineModel(BENCH)
    engine.submit(Generation(1, 100, 1001, 1001), 0.0)
    calls = 0
    now = 0.0
    while (end := engine.begin(now)) is not None:
        calls += 1
        now = end
        engine.finish()
    assert (calls, engine.iterations) == (2, 1001)


def test_arrival_cuts_a_leap_at_the_end_of_the_iteration_under_way() -> None:
    engine = EngineModel(BENCH)
    engine.submit(Generation(1, 100, 1001, 1001), 0.0)
    first = engine.begin(0.0)
    assert first is not None
    engine.finish()
    far = engine.begin(first)
    assert far is not None
    engine.submit(Generation(2, 100, 1, 1), first + 1.0)
    assert engine.ends_at is not None
    assert first + 1.0 <= engine.ends_at < first + 1.0 + 0.008
    assert engine.generated(1) > 100


# against the plain engine


requests = st.lists(
    st.tuples(
        st.floats(0.0, 0.6),  # arrival
        st.integers(0, 3),  # whose prompt
        st.integers(1, 150),  # prompt tokens
        st.integers(1, 60),  # output tokens
        st.none() | st.floats(0.0, 0.3),  # leaves so long after
    ),
    max_size=25,
)


def plays(
    engine: EngineModel | PlainEngine, load: list[tuple[float, int, int, int, float | None]]
) -> tuple[list[float], list[object]]:
    """Run a load; give the times of all events, and the events."""
    serial = count()
    steps: list[tuple[float, int, Generation | Id]] = []
    for id, (at, family, prompt, output, leaves) in enumerate(load):
        # prompts of a family share their beginning; every second one parts from it half way
        names = [(family, n) if id % 2 or n < 4 else (family, n, id) for n in range((prompt + output) // 16)]
        ids = blocks(*(hash(name) for name in names))
        steps.append((at, next(serial), Generation(id, prompt, output, output, ids)))
        if leaves is not None:
            steps.append((at + leaves, next(serial), id))
    steps.sort(key=lambda step: step[:2])
    times: list[float] = []
    log: list[object] = []
    now = 0.0
    while True:
        end = engine.ends_at
        if steps and (end is None or steps[0][0] <= end):
            now, _, step = steps.pop(0)
            if isinstance(step, Generation):
                engine.submit(step, now)
            else:
                times.append(now)
                log.append(("abort", step, engine.abort(step, now)))
            if end is None:
                engine.begin(now)
        elif end is not None:
            now = end
            for event in sorted(engine.finish(), key=str):
                times.append(now)
                log.append(event)
            engine.begin(now)
        else:
            return times, log


@settings(max_examples=300, deadline=None)
@given(
    load=requests, blocks=st.integers(14, 60), budget=st.sampled_from([24, 64, 512]), seqs=st.sampled_from([2, 5, 99])
)
def test_agrees_with_the_plain_engine(
    load: list[tuple[float, int, int, int, float | None]], blocks: int, budget: int, seqs: int
) -> None:
    fast = EngineModel(SMALL, kv_tokens=blocks * 16, max_num_batched_tokens=budget, max_num_seqs=seqs)
    plain = PlainEngine(SMALL, blocks, budget, seqs)
    times, log = plays(plain, load)
    fast_times, fast_log = plays(fast, load)
    assert fast_log == log
    assert fast_times == pytest.approx(times)
    # nothing is left behind: every request ended, and every count is back
    assert (fast.running, fast.waiting, fast.decoding, fast.context_tokens) == (0, 0, 0, 0)
    assert (fast.kv.private, fast.kv.held) == (0, 0)
    assert fast.kv.idle == len(plain.idle) <= fast.kv.capacity


@settings(max_examples=100, deadline=None)
@given(load=requests, blocks=st.integers(14, 40))
def test_memory_is_never_over_capacity(load: list[tuple[float, int, int, int, float | None]], blocks: int) -> None:
    class Watched(EngineModel):
        def begin(self, now: float, leap: bool = True) -> float | None:
            end = super().begin(now, leap)
            kv = self.kv
            assert min(kv.private, kv.held, kv.idle) >= 0
            assert kv.private + kv.held + kv.idle <= kv.capacity
            return end

    plays(Watched(SMALL, kv_tokens=blocks * 16), load)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_every_profile_serves(profile: Profile) -> None:
    engine = EngineModel(profile)
    engine.submit(Generation(1, 1000, 10, 10), 0.0)
    assert 0.01 < play(engine, 0.0)[What.FINISHED, 1] < 1.0
