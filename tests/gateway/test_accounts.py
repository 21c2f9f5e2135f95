"""The keeper of accounts: whatever becomes of the place where they are kept, each request is in there once."""

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway import accounts
from gateway.accounts import Keeper
from gateway.app import StartError
from gateway.metrics import Metrics
from gateway.usagefiles import UsageInFiles
from gateway.usagestore import Batch, Memory, Store, StoreError
from policies.accounts import DAY_S
from policies.tariff import Tariff
from tests.fleet_fixtures import before, house
from tests.policies.test_accounts import DAY, NOON, SERVED

NEXT_DAY = "2027-02-01"


def keeper(store: Store) -> Keeper:
    tariff = Tariff.of(input_price=1)
    return Keeper(store, lambda tenant, model: tariff, Metrics(), lambda: NOON, 400)


async def served(keeper: Keeper, day: str = DAY) -> dict[str, int]:
    """Give how many requests of each tenant are known of a day."""
    ((_, sums),) = await keeper.usage([day])
    return {tenant: counts["served"] for (tenant, _), counts in sums.items()}


def note(keeper: Keeper, count: int = 1, tenant: str = "t", **fields: Any) -> None:
    for _ in range(count):
        keeper.note(replace(SERVED, tenant=tenant, **fields))


# In memory.


async def test_what_is_counted_is_known_before_and_after_it_is_saved() -> None:
    one = keeper(Memory(400))
    note(one, 2)
    assert await served(one) == {"t": 2}
    assert await one.save()
    note(one)
    assert await served(one) == {"t": 3}
    assert await one.save()
    assert await served(one) == {"t": 3}


async def test_what_was_asked_for_may_be_changed_by_who_asked() -> None:
    one = keeper(Memory(400))
    note(one)
    await one.save()
    ((_, sums),) = await one.usage([DAY])
    sums["t", "m"]["served"] = 99
    assert await served(one) == {"t": 1}


async def test_the_oldest_of_too_many_days_are_forgotten() -> None:
    one = keeper(Memory(2))
    for at in range(3):
        note(one, arrived_at=NOON + DAY_S * at)
        await one.save()
    assert [await served(one, day) for day in (DAY, NEXT_DAY, "2027-02-02")] == [{}, {"t": 1}, {"t": 1}]


async def test_metrics_tell_what_was_charged_saved_or_not() -> None:
    metrics = Metrics()
    one = Keeper(Memory(400), lambda tenant, model: Tariff.of(input_price=1000), metrics, lambda: NOON, 400)
    note(one)
    await one.save()
    note(one)
    page = metrics.page("")[1].decode()
    assert 'kvlane_cost_total{model="m",tenant="t"} 0.8\n' in page
    assert 'kvlane_weighted_tokens_total{model="m",tenant="t"} 2100.0\n' in page


class Hanging(Memory):
    """A place that hangs."""

    async def add(self, batch: Batch) -> None:
        await asyncio.Event().wait()


async def test_a_place_that_hangs_does_not_keep_the_gateway_from_ending(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(accounts, "STOP_S", 0.01)
    one = keeper(Hanging(400))
    note(one)
    await one.start()
    await one.close()
    lost = "what could not be saved is lost, 1 requests of 1050 weighted tokens: not done within 0.01 s"
    assert lost in caplog.text


# In files.


def files(directory: Path, budgets: dict[str, object] | None = None, days: int = 400) -> UsageInFiles:
    kept = {} if budgets is None else budgets
    return UsageInFiles(directory, days, lambda: kept, kept.update)


@asynccontextmanager
async def kept_in(store: Store) -> AsyncIterator[Keeper]:
    one = keeper(store)
    await one.start()
    try:
        yield one
    finally:
        await one.close()


async def test_files_keep_accounts_over_a_restart(tmp_path: Path) -> None:
    for total in (2, 4):
        async with kept_in(files(tmp_path / "new" / "place")) as one:
            note(one, 2)
            assert await served(one) == {"t": total}
    async with kept_in(files(tmp_path / "new" / "place")) as one:
        assert await served(one) == {"t": 4}


async def test_files_keep_all_counts_as_they_are(tmp_path: Path) -> None:
    async with kept_in(files(tmp_path)) as one:
        note(one, model='a"b\t€', prompt_tokens=1 << 70)
        before = await one.usage([DAY])
    async with kept_in(files(tmp_path)) as one:
        assert await one.usage([DAY]) == before


async def test_files_keep_budgets_over_a_restart(tmp_path: Path) -> None:
    first: dict[str, object] = {"t": {"d:tokens": [1, 2]}}
    async with kept_in(files(tmp_path, first)):
        pass
    second: dict[str, object] = {}
    async with kept_in(files(tmp_path, second)):
        assert second == first


async def test_two_gateways_do_not_write_in_one_place(tmp_path: Path) -> None:
    async with kept_in(files(tmp_path)):
        with pytest.raises(StoreError, match=r"is in use by another gateway \(process \d+\)"):
            await files(tmp_path).open()
    async with kept_in(files(tmp_path)):
        pass


async def test_a_place_that_cannot_be_is_told_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"accounting\.path .*: (Not a directory|File exists)"):
        await files(tmp_path / "file").open()
    with pytest.raises(StoreError, match="Not a directory"):
        await files(tmp_path / "file" / "below").open()


BROKEN = {
    "cut": '{"version": 1, "usa',
    "empty": "",
    "not UTF-8": "\udcff",
    "a list": "[]",
    "of another version": '{"version": 2, "usage": []}',
    "without usage": '{"version": 1}',
    "no entries": '{"version": 1, "usage": {}}',
    "no mapping": '{"version": 1, "usage": [1]}',
    "no counts": '{"version": 1, "usage": [{"tenant": "t", "model": "m", "counts": 1}]}',
    "text": '{"version": 1, "usage": [{"tenant": "t", "model": "m", "counts": {"served": "1"}}]}',
    "negative": '{"version": 1, "usage": [{"tenant": "t", "model": "m", "counts": {"served": -1}}]}',
}


@pytest.mark.parametrize("what", BROKEN)
async def test_a_file_that_makes_no_sense_is_set_aside_and_the_rest_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    file = tmp_path / f"usage-{DAY}.json"
    content = BROKEN[what].encode(errors="surrogateescape")
    for name in (".broken", ".broken1"):
        file.write_bytes(content)
        async with kept_in(files(tmp_path)) as one:
            note(one)
        assert file.with_name(file.name + name).read_bytes() == content
        assert json.loads(file.read_bytes())["usage"][0]["counts"]["served"] == 1
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 2


@pytest.mark.parametrize("content", ["{", "[]", '{"t": 1}'])
async def test_budgets_that_make_no_sense_are_set_aside(tmp_path: Path, content: str) -> None:
    def restore(budgets: dict[str, object]) -> None:
        sorted(budgets["t"].items())  # type: ignore[attr-defined]

    (tmp_path / "budgets.json").write_text(content)
    async with kept_in(UsageInFiles(tmp_path, 400, dict, restore)):
        pass
    assert (tmp_path / "budgets.json.broken").read_text() == content
    assert (tmp_path / "budgets.json").read_text() == "{}"


async def test_the_files_of_the_oldest_of_too_many_days_are_deleted_and_no_others(tmp_path: Path) -> None:
    for name in ("usage-2027-01-28.json", "usage-2027-01-29.json", "usage-2027-01-30.json", "usage-of-mine.json"):
        (tmp_path / name).write_text("{}")
    async with kept_in(files(tmp_path, days=2)) as one:
        note(one, 2)
    days = {"usage-2027-01-30.json", f"usage-{DAY}.json"}
    assert set(os.listdir(tmp_path)) == {*days, "usage-of-mine.json", "budgets.json", "lock"}


async def test_a_clock_that_is_wrong_costs_no_day(tmp_path: Path) -> None:
    async with kept_in(files(tmp_path)) as one:
        note(one)
        await one.save()
        note(one, arrived_at=NOON + 5000 * DAY_S)
        await one.save()
        assert await served(one) == {"t": 1}


async def test_a_disk_that_is_full_costs_nothing_but_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with kept_in(files(tmp_path)) as one:
        in_the_way = tmp_path / f".usage-{DAY}.json.new"  # stands for a disk that takes nothing
        in_the_way.mkdir()
        note(one)
        assert not await one.save()
        note(one)
        assert not await one.save()
        assert await served(one) == {"t": 2}
        in_the_way.rmdir()
        assert await one.save()
        assert await one.save()
        assert await served(one) == {"t": 2}
    assert [record.message.split(":")[1][:28] for record in caplog.records if "accounting" in record.message] == [
        " usage cannot be saved, and ",
        " usage is saved again",
    ]


# The whole.


async def test_a_second_gateway_in_one_place_says_why_it_does_not_start(tmp_path: Path) -> None:
    accounting = {"path": str(tmp_path)}
    async with house(1, accounting=accounting) as one:
        with pytest.raises(StartError, match="is in use by another gateway"):
            async with before(one.cluster, accounting=accounting):
                pass
