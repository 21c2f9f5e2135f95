"""Listening to engines: what they publish is what the index says, through gaps, restarts, late joining and bursts."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop
from aiohttp import web

from gateway.config import Kind
from policies.index import SPECULATIVE_S
from tests.gateway.listening import PROMPTS, Listening, chain, listening
from tests.gateway.publisher import CLEARED, Publisher, removed, stored
from tests.ports import free_port
from tests.until import until

ONE, TWO, THREE = PROMPTS[:3]


@pytest.fixture
def addresses(tmp_path: Path) -> tuple[str, str]:
    return f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds, scaled."""
    for name, value in {"FIND_EVERY_S": 0.05, "ASK_AGAIN_S": 0.05, "TICK_S": 0.02, "REPLAY_S": 0.3}.items():
        monkeypatch.setattr(f"gateway.kvevents.{name}", value)


@asynccontextmanager
async def both(addresses: tuple[str, str], **more: Any) -> AsyncIterator[tuple[Listening, Publisher]]:
    """A publisher, and one who listens to it from the beginning."""
    async with (
        Publisher(*addresses, **more) as publisher,
        listening(kv_events=addresses[0], kv_replay=addresses[1]) as whole,
    ):
        await publisher.is_heard()
        await whole.is_followed()
        yield whole, publisher


# Events.


async def test_what_is_published_is_what_the_index_holds(addresses: tuple[str, str]) -> None:
    async with both(addresses) as (whole, publisher):
        publisher.publish(stored(ONE), stored(TWO[:100]))
        publisher.publish(stored(TWO, 6), removed(ONE))
        await whole.comes_to_hold(3, 4)
        publisher.publish(removed(TWO[:16]))
        await whole.comes_to_hold(3, 0)
        assert (whole.told.events, whole.told.gaps, whole.told.blocks) == (5, 0, 31)


async def test_an_engine_that_clears_its_cache_holds_nothing_and_is_still_followed(addresses: tuple[str, str]) -> None:
    async with both(addresses) as (whole, publisher):
        publisher.publish(stored(ONE))
        await whole.comes_to_hold(4)
        publisher.publish(CLEARED, stored(TWO))
        await whole.comes_to_hold(0, 4)
        assert whole.told.is_followed


async def test_a_dispatch_that_no_event_confirms_is_forgotten_while_an_engine_is_followed(
    addresses: tuple[str, str],
) -> None:
    async with both(addresses) as (whole, publisher):
        now = asyncio.get_running_loop().time()
        whole.index.learn(whole.member.endpoint, chain(TWO), now)
        publisher.publish(stored(ONE))
        await whole.comes_to_hold(4, 4)
        whole.index.learn(whole.member.endpoint, (), now + SPECULATIVE_S)
        assert whole.held(ONE, TWO) == [4, 0]


async def test_what_makes_no_sense_is_counted_and_passed_over(addresses: tuple[str, str]) -> None:
    async with both(addresses) as (whole, publisher):
        publisher.send(b"\xc1")
        publisher.publish({"type": "New"}, stored(ONE))
        await whole.comes_to_hold(4)
        assert (whole.told.unreadable, whole.told.gaps) == (1, 0)


async def test_a_burst_is_taken_in_without_holding_up_the_loop(addresses: tuple[str, str]) -> None:
    """N = 10,000 messages of a block each, all there at once; others get their turn between slices."""
    count = 10_000
    async with both(addresses) as (whole, publisher):
        long = publish_one_by_one(publisher, count)
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(others())
        await until(lambda: whole.told.events == count, "all taken in", within_s=60)
        task.cancel()
        assert whole.held(long) == [count // 4]
        assert turns > 20


def publish_one_by_one(publisher: Publisher, count: int) -> Sequence[int]:
    """Publish a long prompt, a block a message."""
    long = tuple(range(16 * count))
    for at in range(count):
        block = stored(long[16 * at : 16 * at + 16])
        publisher.publish(block | {"block_hashes": [at + 1], "parent_block_hash": at or None})
    return long


async def test_an_incarnation_that_ends_in_a_burst_is_not_written_of_any_more(addresses: tuple[str, str]) -> None:
    async with both(addresses) as (whole, publisher):
        long = publish_one_by_one(publisher, 3000)
        await until(lambda: whole.told.events > 100, "in the middle")
        assert whole.told.events < 3000
        old = whole.member.endpoint
        whole.fleet.renew(whole.member)
        await until(lambda: whole.held(long) == [750], "taken in anew")
        await whole.is_followed()
        assert repr(whole.index) == "<PrefixIndex 750 units: e0 750>"
        assert whole.index.held_tokens(old) == 0


async def test_a_fault_of_ours_is_said_once_and_leaves_the_engine_to_dispatches(
    addresses: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    async with both(addresses) as (whole, publisher):
        publisher.publish(stored(ONE))
        await whole.comes_to_hold(4)
        whole.unit_tokens = 0
        await until(lambda: whole.told.trouble, "failed")
        asked = whole.asked
        await until(lambda: whole.asked > asked + 3, "tried again")
        assert not whole.told.is_followed
        whole.unit_tokens = 64
        await whole.comes_to_hold(4)
        await whole.is_followed()
        said = [record.message for record in caplog.records if record.levelname in ("ERROR", "WARNING")]
        assert said == ["reading the KV events of e0 failed"]


async def test_frames_that_are_no_message_are_passed_over(addresses: tuple[str, str]) -> None:
    async with both(addresses) as (whole, publisher):
        publisher.send_frames(b"")
        publisher.send_frames(b"topic", b"short", b"payload")
        publisher.send_frames(b"topic", b"much too long", b"payload")
        publisher.publish(stored(ONE))
        await whole.comes_to_hold(4)
        assert (whole.told.unreadable, whole.told.gaps, whole.told.trouble) == (0, 0, "")


# Late, lost, and anew.


@pytest.mark.parametrize("topics", [True, False])
async def test_who_joins_late_is_told_what_was_before(addresses: tuple[str, str], topics: bool) -> None:
    async with Publisher(*addresses, topics=topics) as publisher:
        publisher.publish(stored(ONE))
        publisher.publish(stored(TWO), removed(ONE))
        async with listening(kv_events=addresses[0], kv_replay=addresses[1]) as whole:
            await whole.comes_to_hold(3, 4)
            await whole.is_followed()
            publisher.publish(stored(THREE))
            await whole.comes_to_hold(3, 4, 4)
            assert (publisher.asked, whole.told.gaps) == ([0], 0)


async def test_what_dispatches_alone_say_is_forgotten_when_events_tell_all(addresses: tuple[str, str]) -> None:
    async with Publisher(*addresses) as publisher:
        publisher.publish(stored(ONE))
        async with listening(kv_events=addresses[0], kv_replay=addresses[1]) as whole:
            whole.index.learn(whole.member.endpoint, chain(TWO), 0.0)
            await whole.comes_to_hold(4, 0)


async def test_who_cannot_be_told_all_believes_dispatches_as_well(addresses: tuple[str, str]) -> None:
    async with Publisher(*addresses, buffer=2) as publisher:
        publisher.publish(stored(ONE))
        publisher.publish(stored(ONE[:128]))
        publisher.publish(stored(TWO))
        async with listening(kv_events=addresses[0], kv_replay=addresses[1]) as whole:
            whole.index.learn(whole.member.endpoint, chain(THREE), 0.0)
            await whole.comes_to_hold(2, 4, 4)
            assert not whole.told.is_followed
            publisher.publish(CLEARED)
            await whole.is_followed()
            assert whole.held(ONE, TWO, THREE) == [0, 0, 0]


async def test_without_replay_events_and_dispatches_count_side_by_side(addresses: tuple[str, str]) -> None:
    async with Publisher(addresses[0], None) as publisher:
        publisher.number = 7
        async with listening(kv_events=addresses[0]) as whole:
            whole.index.learn(whole.member.endpoint, chain(TWO), 0.0)
            await publisher.is_heard()
            await until(lambda: whole.told.replays, "connected")
            publisher.publish(stored(ONE))
            await whole.comes_to_hold(4, 4)
            assert not whole.told.is_followed
            publisher.publish(is_lost=True)
            publisher.publish(stored(THREE))
            await whole.comes_to_hold(0, 0, 4)
            assert (whole.told.gaps, whole.told.is_followed) == (1, False)


async def test_a_replay_that_does_not_answer_is_none(addresses: tuple[str, str]) -> None:
    async with Publisher(addresses[0], None) as publisher:
        publisher.number = 7
        async with listening(kv_events=addresses[0], kv_replay=addresses[1]) as whole:
            await publisher.is_heard()
            await until(lambda: whole.told.replays, "connected")
            publisher.publish(stored(ONE))
            await whole.comes_to_hold(4)
            assert (whole.told.is_followed, whole.told.trouble) == (False, "")


async def test_without_replay_the_first_message_of_all_tells_all(addresses: tuple[str, str]) -> None:
    async with Publisher(addresses[0], None) as publisher, listening(kv_events=addresses[0]) as whole:
        await publisher.is_heard()
        await until(lambda: whole.told.replays, "connected")
        publisher.publish(stored(ONE))
        await whole.is_followed()
        assert whole.held(ONE) == [4]


async def test_a_gap_is_asked_for(addresses: tuple[str, str]) -> None:
    async with both(addresses) as (whole, publisher):
        publisher.publish(stored(ONE))
        publisher.publish(stored(TWO), is_lost=True)
        publisher.publish(removed(ONE), is_lost=True)
        publisher.publish(stored(THREE))
        await whole.comes_to_hold(3, 4, 4)
        assert (publisher.asked, whole.told.gaps, whole.told.is_followed) == ([0, 1], 1, True)


async def test_a_gap_that_is_not_kept_any_more_drops_all(addresses: tuple[str, str]) -> None:
    async with both(addresses) as (whole, publisher):
        publisher.publish(stored(ONE))
        await whole.comes_to_hold(4)
        publisher.publish(removed(ONE), is_lost=True, is_kept=False)
        publisher.publish(stored(TWO), is_lost=True)
        publisher.publish(stored(THREE))
        await whole.comes_to_hold(0, 4, 4)
        await until(lambda: not whole.told.is_followed, "not followed")
        publisher.publish(CLEARED)
        await whole.is_followed()


async def test_a_hiccup_changes_nothing(addresses: tuple[str, str]) -> None:
    async with both(addresses) as (whole, publisher):
        publisher.publish(stored(ONE))
        await whole.comes_to_hold(4)
        await publisher.pause()
        await until(lambda: not whole.told.is_followed, "lost")
        whole.index.learn(whole.member.endpoint, chain(TWO), 0.0)
        publisher.publish_while_away(stored(THREE))
        publisher.resume()
        await whole.comes_to_hold(4, 0, 4)
        await whole.is_followed()
        assert publisher.asked == [0, 0]


@pytest.mark.parametrize("count", [1, 2, 3])
async def test_an_engine_that_restarted_holds_what_it_holds_now(addresses: tuple[str, str], count: int) -> None:
    """With fewer messages than before, as many, and more."""
    async with both(addresses) as (whole, publisher):
        publisher.publish(stored(ONE))
        publisher.publish(stored(ONE))
        await whole.comes_to_hold(4)
        await publisher.pause()
        publisher.begin_anew()
        for _ in range(count):
            publisher.publish(stored(TWO))
        await whole.comes_to_hold(0, 4)
        await whole.is_followed()


async def test_numbers_that_fall_back_drop_all(addresses: tuple[str, str]) -> None:
    """The publisher began anew, and the connection held: a proxy between, or a publisher inside another process."""
    async with both(addresses) as (whole, publisher):
        for _ in range(3):
            publisher.publish(stored(ONE))
        await whole.comes_to_hold(4)
        publisher.forget()
        publisher.publish(stored(TWO))
        publisher.publish(stored(THREE))
        await whole.comes_to_hold(0, 4, 4)
        await whole.is_followed()


async def test_an_engine_that_is_gone_for_good_is_judged_by_dispatches_and_looked_for(
    addresses: tuple[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gateway.kvevents.LOST_S", 0.1)
    async with both(addresses) as (whole, publisher):
        publisher.publish(stored(ONE))
        await whole.comes_to_hold(4)
        await publisher.pause()
        await until(lambda: whole.told.trouble, "given up")
        assert whole.held(ONE) == [4]
        await until(lambda: [record.message for record in caplog.records] != [], "said")
        publisher.begin_anew()
        publisher.publish(stored(TWO))
        await whole.comes_to_hold(0, 4)
        await whole.is_followed()
        said = [record.message for record in caplog.records if record.levelname == "WARNING"]
        assert said == [f"no KV events of e0: nobody publishes at {addresses[0]}"]


async def test_a_new_incarnation_is_told_of_anew_and_the_old_one_no_more(addresses: tuple[str, str]) -> None:
    async with both(addresses) as (whole, publisher):
        publisher.publish(stored(ONE))
        await whole.comes_to_hold(4)
        old = whole.member.endpoint
        whole.fleet.renew(whole.member)
        publisher.publish(stored(TWO))
        await whole.comes_to_hold(4, 4)
        await whole.is_followed()
        assert whole.index.held_tokens(old) == 0
        assert repr(whole.index) == "<PrefixIndex 8 units: e0 8>"


async def test_a_change_of_the_unit_maps_all_anew(addresses: tuple[str, str]) -> None:
    async with both(addresses) as (whole, publisher):
        publisher.publish(stored(ONE))
        await whole.comes_to_hold(4)
        whole.unit_tokens = 128
        await whole.comes_to_hold(2)
        await whole.is_followed()
        assert repr(whole.index) == "<PrefixIndex 2 units: e0 2>"


async def test_an_engine_whose_blocks_can_hardly_be_mapped_is_judged_by_dispatches(addresses: tuple[str, str]) -> None:
    pictures = [[["a picture", 0]]] * 16
    async with both(addresses) as (whole, publisher):
        for prompt in PROMPTS:
            publisher.publish(stored(prompt, extra_keys=pictures))
        await until(lambda: not whole.told.is_followed, "not followed")
        publisher.publish(stored(ONE))
        await whole.comes_to_hold(4)


async def test_an_engine_that_left_is_not_listened_to(addresses: tuple[str, str]) -> None:
    async with both(addresses) as (whole, publisher):
        publisher.publish(stored(ONE))
        await whole.comes_to_hold(4)
        whole.kv_events.forget(whole.member)
        whole.fleet.remove(whole.member)
        publisher.publish(stored(TWO))
        await until(lambda: len(asyncio.all_tasks()) == 2, "its tasks have ended")
        assert (list(whole.kv_events.told()), repr(whole.index)) == ([], "<PrefixIndex 0 units: >")


# Where they are.


async def test_an_engine_that_connects_is_listened_to_at_an_address_of_ours(addresses: tuple[str, str]) -> None:
    async with Publisher(*addresses, connects=True) as publisher:
        publisher.publish(stored(ONE))
        async with listening(kv_events=f"bind:{addresses[0]}", kv_replay=addresses[1]) as whole:
            await whole.comes_to_hold(4)
            publisher.publish(stored(TWO))
            await whole.comes_to_hold(4, 4)


async def test_an_address_that_cannot_be_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    async with listening(kv_events="bind:ipc:///nowhere/at/all") as whole:
        await until(lambda: whole.told.trouble, "said")
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


async def test_who_is_not_to_be_listened_to_is_not() -> None:
    async with listening(kv_events="off") as whole:
        assert list(whole.kv_events.told()) == []


@asynccontextmanager
async def pages(port: int = 0, **answers: Any) -> AsyncIterator[tuple[str, list[str]]]:
    """Serve JSON by path, and note what is asked."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(f"{request.method} {request.path} {request.headers.get('authorization')}")
        found = answers.get(request.path.strip("/"))
        if isinstance(found, list):
            found = found.pop(0) if found else []
        return web.Response(status=404) if found is None else web.Response(body=msgspec.json.encode(found))

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", asked
    finally:
        await runner.cleanup()


async def test_vllm_says_where_it_publishes(addresses: tuple[str, str]) -> None:
    rank = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": addresses[0],
        "replay_endpoint": addresses[1],
    }
    async with Publisher(*addresses) as publisher, pages(kv_event_sources={"0": rank}) as (url, asked):
        publisher.publish(stored(ONE))
        async with listening(url, api_key="secret") as whole:
            await whole.comes_to_hold(4)
            await whole.is_followed()
            assert asked == ["GET /kv_event_sources Bearer secret"]


async def test_every_rank_has_a_cache_and_a_publisher_of_its_own(tmp_path: Path) -> None:
    places = [(f"ipc://{tmp_path}/events{rank}", f"ipc://{tmp_path}/replay{rank}") for rank in range(2)]
    ranks = {
        str(rank): {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": at, "replay_endpoint": replay}
        for rank, (at, replay) in enumerate(places)
    }
    async with (
        Publisher(*places[0]) as first,
        Publisher(*places[1]) as second,
        pages(kv_event_sources=ranks) as (url, _),
        listening(url) as whole,
    ):
        await whole.is_followed()
        first.publish(stored(ONE[:128]))
        await whole.comes_to_hold(2)
        second.publish(stored(ONE), stored(TWO))
        await whole.comes_to_hold(4, 4)
        first.publish(removed(ONE[:16]), stored(THREE))
        await whole.comes_to_hold(4, 4, 4)
        second.publish(removed(ONE[:16]))
        await whole.comes_to_hold(0, 4, 4)
        second.publish(CLEARED)
        await whole.comes_to_hold(0, 0, 4)
        assert whole.told.is_followed


async def test_an_engine_that_does_not_answer_is_asked_again_soon(
    addresses: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.kvevents.ASK_AGAIN_S", 60)
    port = free_port()
    rank = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": addresses[0]}
    async with Publisher(addresses[0], None) as publisher, listening(f"http://127.0.0.1:{port}") as whole:
        for _ in range(100):
            await asyncio.sleep(0)
        async with pages(port=port, kv_event_sources={"0": rank}):
            await publisher.is_heard()
            await until(lambda: whole.told.replays, "connected")
            publisher.publish(stored(ONE))
            await whole.is_followed()


async def test_an_engine_that_publishes_nothing_is_asked_again() -> None:
    async with pages() as (url, asked), listening(url) as whole:
        await until(lambda: len(asked) > 2, "asked again")
        assert (whole.told.trouble, whole.told.is_followed) == ("", False)


async def test_an_engine_of_no_known_kind_is_asked_once_it_is_known() -> None:
    async with pages() as (url, asked), listening(url, "auto") as whole:
        await asyncio.sleep(0)
        assert asked == []
        whole.member.kind = Kind.SGLANG
        await until(lambda: asked, "asked")
        assert asked[0] == "GET /server_info None"


# TensorRT-LLM.


def told(number: int, kind: str, **data: object) -> dict[str, object]:
    return {"event_id": number, "data": {"type": kind, **data}, "window_size": 4096}


def trtllm_stored(number: int, prompt: Sequence[int]) -> dict[str, object]:
    blocks = [
        {
            "block_hash": prompt[at],
            "tokens": [{"token_id": token, "token_extra_id": 0} for token in prompt[at : at + 32]],
        }
        for at in range(0, len(prompt), 32)
    ]
    return told(number, "stored", parent_hash=None, blocks=blocks)


async def test_tensorrt_llm_is_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.kvevents.POLL_EVERY_S", 0.01)
    answers = [
        [told(0, "created"), trtllm_stored(1, ONE)],
        [trtllm_stored(2, TWO), told(3, "removed", block_hashes=[ONE[96]])],
    ]
    async with (
        pages(kv_cache_events=answers) as (url, asked),
        listening(url, "trtllm", kv_events=f"{url}/kv_cache_events") as whole,
    ):
        await whole.comes_to_hold(1, 4)
        await whole.is_followed()
        answers.append([trtllm_stored(7, THREE)])
        await whole.comes_to_hold(0, 0, 4)
        await until(lambda: not whole.told.is_followed, "not followed")
        assert (whole.told.gaps, asked[0]) == (1, "POST /kv_cache_events None")


async def test_tensorrt_llm_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.kvevents.POLL_EVERY_S", 0.01)
    monkeypatch.setattr("gateway.kvevents.LOST_S", 0.05)
    async with pages() as (url, _), listening(url, "trtllm", kv_events=f"{url}/kv_cache_events") as whole:
        await until(lambda: whole.told.trouble == f"{url}/kv_cache_events says 404", "said")


def test_it_all_works_on_the_loop_that_the_gateway_runs_on(addresses: tuple[str, str]) -> None:
    async def scenario() -> None:
        async with both(addresses) as (whole, publisher):
            publisher.publish(stored(ONE), is_lost=True)
            publisher.publish(stored(TWO))
            await whole.comes_to_hold(4, 4)
            await publisher.pause()
            publisher.begin_anew()
            publisher.publish(stored(THREE))
            await whole.comes_to_hold(0, 0, 4)
            await whole.is_followed()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())
