"""Workloads: what they draw is what their scenario says, and equal block ids mean equal beginnings.

Statistics over N requests of seed 1; a mean may be off by what is said at each, some three standard errors.
"""

from collections import Counter
from itertools import pairwise
from statistics import fmean
from typing import TypeVar

import pytest

from loadtests.kvcache import BLOCK_TOKENS
from loadtests.scenario import Dirty, Groups, Overload, Singles, Talks, load, names
from loadtests.sources import source
from loadtests.workloads import BATCH, SERVED_S, SERVED_TOKEN_S, Job, TalkSource, Texts

Spec = TypeVar("Spec")


def workload_of(name: str, kind: type[Spec]) -> Spec:
    workload = load(name).workload
    assert isinstance(workload, kind)
    return workload


def jobs(name: str, rate: float, duration_s: float, seed: str = "1") -> list[Job]:
    return list(source(load(name).workload, seed).jobs(rate, duration_s))


def finished(job: Job) -> list[Job]:
    """Hold a conversation to its end, with answers as fast as they are taken to have been in its past."""
    turns = [job]
    talk = job.talk
    assert talk is not None
    while talk.turns_left:
        answer_s = SERVED_S + turns[-1].output_tokens * SERVED_TOKEN_S
        turns.append(talk.next(turns[-1].at + answer_s + talk.think_s()))
    return turns


@pytest.mark.parametrize("name", names())
def test_the_same_seed_makes_the_same_requests(name: str) -> None:
    def plain(seed: str) -> list[Job]:
        return [job._replace(talk=None) for job in jobs(name, 20, 20, seed)]

    assert plain("1") == plain("1") != plain("2")


@pytest.mark.parametrize("name", names())
def test_requests_come_in_order_and_in_time(name: str) -> None:
    found = jobs(name, 20, 30)
    assert all(before.at <= after.at for before, after in pairwise(found))
    assert all(0 <= job.at < 30 and job.prompt_tokens > 0 and job.output_tokens > 0 for job in found)


@pytest.mark.parametrize("name", names())
def test_blocks_are_the_full_ones_of_prompt_and_at_most_output(name: str) -> None:
    for job in jobs(name, 20, 20):
        full = len(job.blocks)
        assert job.prompt_tokens // BLOCK_TOKENS <= full <= (job.prompt_tokens + job.output_tokens) // BLOCK_TOKENS
        assert job.system_tokens <= job.opening_tokens <= job.prompt_tokens


@pytest.mark.parametrize("name", names())
def test_equal_ids_mean_equal_beginnings(name: str) -> None:
    before: dict[int, int] = {}
    for job in jobs(name, 20, 10):
        for one, next_one in pairwise(job.blocks):
            assert before.setdefault(next_one, one) == one


def test_tenants_have_the_lengths_of_the_table() -> None:  # N = 12,000
    found = jobs("tenants", 100, 120)
    assert fmean(job.prompt_tokens - job.system_tokens for job in found) == pytest.approx(180, rel=0.03)
    assert fmean(job.output_tokens for job in found) == pytest.approx(200, rel=0.03)
    assert all(20 <= job.prompt_tokens - job.system_tokens <= 1500 for job in found)
    assert all(10 <= job.output_tokens <= 1500 and 500 <= job.system_tokens <= 6000 for job in found)
    assert len(found) == pytest.approx(12_000, rel=0.03)


def test_tenants_are_popular_by_zipf() -> None:  # N = 12,000; the first has 1 / H(300) = 15.9 % of the requests
    shares = Counter(job.beginning(job.system_tokens) for job in jobs("tenants", 100, 120))
    (_, first), (_, second) = shares.most_common(2)
    assert len(shares) == pytest.approx(300, abs=5)
    assert first / shares.total() == pytest.approx(0.159, abs=0.01)
    assert first / second == pytest.approx(2, rel=0.12)


def test_documents_share_their_header() -> None:
    spec = workload_of("rag", Singles)
    found = jobs("rag", 50, 60)
    assert len({job.blocks[: spec.systems.header_tokens // BLOCK_TOKENS] for job in found}) == 1
    assert all(3300 <= job.system_tokens <= 28_300 for job in found)
    assert fmean(job.prompt_tokens - job.system_tokens for job in found) == pytest.approx(60, rel=0.05)


def test_a_conversation_grows_by_what_was_said() -> None:
    first = next(job for job in jobs("conv", 50, 100) if job.talk is not None and job.talk.turns_left > 3)
    turns = finished(first)
    for before, after in pairwise(turns):
        assert after.prompt_tokens >= before.prompt_tokens + before.output_tokens + 15
        assert after.blocks[: len(before.blocks)] == before.blocks
        assert after.opening_tokens == before.opening_tokens
        assert after.at - before.at >= 1.0 + SERVED_S


def test_conversations_have_the_turns_of_the_table() -> None:  # N = 3,000; geometric of mean 6, cut at 30
    chance_of_more = 5 / 6
    source_of_talks = TalkSource(workload_of("conv", Talks), "1", Texts())
    turns = [1 + job.talk.turns_left for job in source_of_talks.arriving(iter([0.0] * 3000)) if job.talk]
    assert fmean(turns) == pytest.approx(6 * (1 - chance_of_more**30), rel=0.05) == source_of_talks.turns_mean
    assert max(turns) <= 30


@pytest.mark.parametrize("name", ["conv", "agent"])
def test_conversations_are_under_way_from_the_start(name: str) -> None:  # within 10 % of the rate in each third
    rate, thirds = 40, [0, 0, 0]
    for job in jobs(name, rate, 90):
        thirds_of_talk = [int(turn.at // 30) for turn in finished(job)]
        for third in thirds_of_talk:
            if third < 3:
                thirds[third] += 1
    assert [count / 30 for count in thirds] == pytest.approx([rate] * 3, rel=0.1)


def test_dirty_traffic_is_what_it_says() -> None:  # N = some 20,000 over 1,000 s
    spec = workload_of("dirty", Dirty)
    rate = 20
    arriving = jobs("dirty", rate, 1000)
    every = [turn for job in arriving for turn in (finished(job) if job.talk else [job]) if turn.at < 1000]
    kinds = Counter(job.tenant for job in every)
    assert kinds.total() / 1000 == pytest.approx(rate, rel=0.15)
    assert kinds["long"] / kinds.total() == pytest.approx(0.01, abs=0.003)
    begun = Counter(job.tenant for job in arriving if job.talk is None or job.prompt_tokens == job.opening_tokens)
    assert begun["singles"] / begun["talks"] == pytest.approx(1, rel=0.1)
    assert all(spec.long_least <= job.prompt_tokens <= spec.long_most for job in every if job.tenant == "long")
    assert len({job.blocks[0] for job in every if job.tenant == "long"}) == kinds["long"]


def test_dirty_traffic_comes_in_bursts() -> None:  # seconds of a burst have four times the requests of quiet ones
    seconds = Counter(int(job.at) for job in jobs("dirty", 60, 400) if job.tenant == "singles")
    busy = sorted(seconds[second] for second in range(400))
    assert busy[-4] > 3 * busy[200]
    assert sum(count > 2.5 * busy[200] for count in busy) / 400 == pytest.approx(0.05, abs=0.035)


def test_groups_go_through_all_prompts_before_any_comes_again() -> None:
    spec = workload_of("b2b", Groups)
    prompts = spec.groups * spec.prompts
    found = jobs("b2b", 20, 60)
    assert len({job.blocks for job in found[:prompts]}) == prompts
    assert [job.blocks for job in found[prompts:]] == [job.blocks for job in found][: len(found) - prompts]
    assert len({job.beginning(job.system_tokens) for job in found}) == spec.groups
    assert {(job.prompt_tokens, job.output_tokens) for job in found} == {(7200, 1000)}


def test_overload_has_tenants_by_system_prompt_batch_among_them_and_prompts_that_are_too_long() -> None:
    """N = 9,900 requests: a fifth are batch, a hundredth too long, both within a fifth of that."""
    found = jobs("overload", 225.0, 44.0)
    workload = workload_of("overload", Overload)
    classes = Counter(job.service_class for job in found)
    assert classes[BATCH] / len(found) == pytest.approx(workload.batch_share, rel=0.2)
    long = [job for job in found if job.prompt_tokens >= workload.long_least]
    assert len(long) / len(found) == pytest.approx(workload.long_share, rel=0.3)
    assert classes[""] == len(long)
    systems: dict[str, set[int]] = {}
    for job in found:
        if job.system_tokens:
            systems.setdefault(job.tenant, set()).add(job.beginning(job.system_tokens))
    assert len(systems) > 250
    assert all(len(beginnings) == 1 for beginnings in systems.values())
