"""Traces: read as published, and what they become at other rates."""

from math import ceil
from statistics import fmean

import pytest

from loadtests.report import percentile
from loadtests.scenario import load
from loadtests.sources import source
from loadtests.traces import azure, mooncake, superpose


def test_mooncake_has_its_published_figures() -> None:
    rows = mooncake()
    prompts = sorted(row.prompt_tokens for row in rows)
    assert len(rows) == 12_031
    assert round(fmean(prompts)) == 12_035
    assert percentile(prompts, 0.5) == pytest.approx(6_909, abs=5)
    assert percentile(prompts, 0.99) == pytest.approx(85_400, rel=0.01)
    assert round(fmean(row.output_tokens for row in rows)) == 343
    assert rows[-1].at / 60 == pytest.approx(59, abs=0.1)


def test_mooncake_would_reuse_37_percent_in_an_infinite_cache() -> None:
    seen: set[int] = set()
    found = 0
    for row in mooncake():
        assert len(row.hash_ids) == ceil(row.prompt_tokens / 512)
        known = [id in seen for id in row.hash_ids]
        hits = known.index(False) if False in known else len(known)
        assert not any(known[hits:])  # ids are chained: what is unknown stays unknown
        found += min(hits * 512, row.prompt_tokens)
        seen.update(row.hash_ids)
    assert found / sum(row.prompt_tokens for row in mooncake()) == pytest.approx(0.37, abs=0.005)


def test_azure_has_its_published_figures() -> None:
    rows = azure()
    prompts = sorted(row.prompt_tokens for row in rows)
    assert len(rows) == 19_366
    assert round(fmean(prompts)) == 1_155
    assert percentile(prompts, 0.99) == pytest.approx(4_142, abs=5)
    assert round(fmean(row.output_tokens for row in rows)) == 211
    assert len(rows) / rows[-1].at == pytest.approx(5.5, abs=0.1)


@pytest.mark.parametrize("rate", [1.0, 3.4, 5.0, 20.0])
def test_copies_give_any_rate(rate: float) -> None:  # over the whole length of the trace, where rotation is no matter
    length = mooncake()[-1].at
    assert len(list(superpose(mooncake(), rate, length, "1"))) / length == pytest.approx(rate, rel=0.05)


def test_sessions_are_kept_or_left_out_as_a_whole() -> None:
    length = mooncake()[-1].at + 1
    rows = [row for _, copy, row in superpose(mooncake(), 2.0, length, "1") if copy == 0]
    kept = {row.session for row in rows}
    assert len(rows) == sum(row.session in kept for row in mooncake()) < len(mooncake())


def test_copies_share_nothing() -> None:
    blocks = [set(row.blocks(copy)) for copy in (0, 1) for row in mooncake()[:50]]
    assert not set().union(*blocks[:50]) & set().union(*blocks[50:])


def test_partial_last_blocks_are_cut() -> None:
    row = mooncake()[0]
    assert (row.prompt_tokens, len(row.hash_ids), len(row.blocks(0))) == (6758, 14, 6758 // 16)


def test_azure_prompts_begin_with_as_much_of_a_system_prompt_as_fits() -> None:
    jobs = list(source(load("azure").workload, "1").jobs(50, 30))
    assert all(job.system_tokens <= max(0, job.prompt_tokens - 20) for job in jobs)
    assert fmean(job.system_tokens > 0 for job in jobs) > 0.9
