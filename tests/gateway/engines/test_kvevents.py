"""Reading KV events: every form that engines have sent, and what none of them should send."""

from array import array
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.engines.kvevents import TrtllmEvents, decode
from policies.blocks import EngineBlocks
from policies.events import DEVICE, Cleared, Event, Removed, Stored
from policies.prefix import block_hashes, root_of
from policies.request import BlockHash

CAPTURE = Path(__file__).parent / "captures" / "vllm_kv_events.jsonl"
IDS = array("I", range(32))


def batch(*entries: object, rest: tuple[object, ...] = (0,)) -> bytes:
    return msgspec.msgpack.encode([1795966402.5, list(entries), *rest])


def read(*entries: object) -> list[Event]:
    decoded = decode(batch(*entries))
    assert decoded is not None
    return list(decoded.events())


def stored(**more: object) -> dict[str, object]:
    """Tell of two blocks of 16 as vLLM 0.32 does."""
    return {
        "type": "BlockStored",
        "block_hashes": [1, 2],
        "parent_block_hash": None,
        "token_ids": list(IDS),
        "block_size": 16,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None, None],
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    } | more


PLAIN = Stored([1, 2], None, IDS, 16)


# Forms.


@pytest.mark.parametrize(
    "entry",
    [
        ["BlockStored", [1, 2], None, list(IDS), 16, None],  # vLLM 0.9
        ["BlockStored", [1, 2], None, list(IDS), 16, None, "GPU"],  # vLLM 0.10, SGLang
        ["BlockStored", [1, 2], None, list(IDS), 16, None, "GPU", None],  # 0.16
        ["BlockStored", [1, 2], None, list(IDS), 16, None, "GPU", None, [None, None], 0],  # 0.20
        [
            "BlockStored",
            [1, 2],
            None,
            list(IDS),
            16,
            None,
            "GPU",
            None,
            [None, None],
            0,
            "full_attention",
            None,
        ],  # 0.22
        ["BlockStored", [1, 2], None, list(IDS), 16, None, "GPU", None, None, 0, "full_attention", None, "new", 7],
        stored(),  # 0.24
        stored(locality="LOCAL", session_id="s", ownership="x", something={"new": 1}),  # 0.30 and what may come
        {
            "type": "BlockStored",
            "block_hashes": [1, 2],
            "parent_block_hash": None,
            "token_ids": list(IDS),
            "block_size": 16,
        },
    ],
)
def test_stored_blocks_are_read_in_every_form(entry: object) -> None:
    assert read(entry) == [PLAIN]


@pytest.mark.parametrize(
    ("entry", "event"),
    [
        (["BlockRemoved", [1, 2]], Removed([1, 2])),
        (["BlockRemoved", [1], "GPU"], Removed([1])),
        (["BlockRemoved", [1], "CPU", 0], Removed([1], "CPU", 0)),
        ({"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU", "group_idx": 1}, Removed([1], DEVICE, 1)),
        ({"type": "BlockRemoved", "block_hashes": [1], "medium": "DISK"}, Removed([1], "DISK")),
        ({"type": "BlockRemoved", "block_hashes": [1], "medium": 7}, Removed([1], "unknown")),
        (["AllBlocksCleared"], Cleared()),
        ({"type": "AllBlocksCleared"}, Cleared()),
    ],
)
def test_what_is_gone_is_read_in_every_form(entry: object, event: Event) -> None:
    assert read(entry) == [event]


def test_the_rank_may_be_missing() -> None:
    found = [decode(batch(rest=rest)) for rest in ((), (None,), (3,), (3, "new"))]
    assert [each.rank for each in found if each is not None] == [0, 0, 3, 3]


def test_hashes_may_be_signed_or_bytes() -> None:
    digest = bytes(range(32))
    low = int.from_bytes(digest[-8:], "big")
    assert read(stored(block_hashes=[-5, digest], parent_block_hash=digest)) == [
        PLAIN._replace(hashes=[-5, low], parent=low)
    ]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"lora_name": "law", "extra_keys": [["law"], ["law"]]}, {"adapter": "law"}),
        ({"lora_name": "law", "lora_id": 1}, {"adapter": "law"}),
        ({"lora_id": 1}, {"adapter": None}),
        ({"extra_keys": [["salt"], None]}, {"salt": "salt"}),
        ({"lora_name": "law", "extra_keys": [["law", "salt"], ["law"]]}, {"adapter": "law", "salt": "salt"}),
        ({"cache_salt": "salt", "extra_keys": None}, {"salt": "salt"}),
        ({"extra_keys": [None, [["0afe", 3]]]}, {"mapped": 1}),
        ({"extra_keys": [[["0afe", 3], "salt"], None]}, {"salt": "salt", "mapped": 0}),
        ({"extra_keys": [None, [b"embeddings"]]}, {"mapped": 1}),
        ({"parent_block_hash": 9, "extra_keys": [["not a salt here"], None]}, {"parent": 9, "mapped": 0}),
        ({"medium": "CPU"}, {"medium": "CPU"}),
        ({"token_ids": [[at, at + 1] for at in range(32)]}, {}),  # SGLang with a draft model
        ({"group_idx": 2}, {"group": 2}),
        ({"kv_cache_spec_kind": "mla_attention"}, {}),
    ],
)
def test_what_keeps_caches_apart_is_read(more: dict[str, object], expected: dict[str, Any]) -> None:
    assert read(stored(**more)) == [PLAIN._replace(**expected)]


@pytest.mark.parametrize(
    "more",
    [
        {"kv_cache_spec_kind": "sliding_window"},
        {"kv_cache_spec_kind": "mamba"},
        {"kv_cache_spec_kind": None, "group_idx": 1},
    ],
)
def test_layers_that_do_not_keep_all_of_a_prompt_are_passed_over(more: dict[str, object]) -> None:
    assert read(stored(**more)) == []


# What makes no sense.


@pytest.mark.parametrize(
    "entry",
    [
        {"type": "BlockUpdated", "block_hashes": [1]},
        ["BlockUpdated", [1]],
        {},
        [],
        None,
        "BlockStored",
        ["BlockStored"],
        ["BlockRemoved"],
        {"type": ["BlockStored"]},
        stored(block_hashes=None),
        stored(block_hashes=["a"]),
        stored(token_ids=None),
        stored(token_ids=[-1] * 32),
        stored(token_ids=[1 << 32] * 32),
        stored(token_ids=["a"]),
        stored(token_ids=[[]]),
        stored(block_size=None),
        stored(block_size=0),
        stored(parent_block_hash="a"),
    ],
)
def test_an_event_that_makes_no_sense_is_passed_over_and_the_others_count(entry: object) -> None:
    assert read(entry, stored()) == [PLAIN]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x93",
        batch()[:-1],
        b"\x91" * 100_000,
        *map(msgspec.msgpack.encode, (7, [], [1], ["x", []], [1, {}], {})),
    ],
)
def test_what_is_no_batch_is_none(payload: bytes) -> None:
    assert decode(payload) is None


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text()
    | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)
FIELDS = sorted(stored())


@given(st.dictionaries(st.sampled_from(FIELDS[:-1]), VALUES), st.lists(VALUES, max_size=12))
def test_nothing_that_is_sent_raises(fields: dict[str, object], values: list[object]) -> None:
    read(stored(**fields), ["BlockStored", *values], ["BlockRemoved", *values], *values)
    answer = orjson.dumps({"a": 1})
    decode(answer)


# TensorRT-LLM.


def told(number: int, kind: str, window: int | None = None, **data: object) -> dict[str, object]:
    entry: dict[str, object] = {"event_id": number, "data": {"type": kind, **data}}
    return entry if window is None else entry | {"window_size": window}


def trtllm_blocks(*sizes: int, **more: object) -> list[dict[str, object]]:
    """Make blocks 1, 2, … of ids that count up."""
    blocks, at = [], 0
    for number, size in enumerate(sizes, 1):
        tokens = [{"type": "unique_token", "token_id": at + n, "token_extra_id": 0} for n in range(size)]
        at += size
        blocks.append(
            {"type": "stored_block", "block_hash": number, "tokens": tokens, "cache_level": 0, "priority": 35}
        )
    blocks[-1] |= more
    return blocks


def polled(events: TrtllmEvents, *entries: object) -> list[Event]:
    return list(events.read(orjson.dumps(entries)))


def test_polled_events_are_read_in_order() -> None:
    events = TrtllmEvents()
    assert polled(
        events,
        told(0, "created", num_blocks_per_cache_level=[9, 0]),
        told(1, "stored", parent_hash=None, blocks=trtllm_blocks(16, 16)),
        told(2, "updated", block_hash=1, cache_level={"type": "event_diff", "new_value": 1, "old_value": 0}),
        told(3, "removed", block_hashes=[2]),
    ) == [Cleared(), PLAIN, Removed([2])]
    assert polled(events, told(4, "stored", parent_hash=7, blocks=trtllm_blocks(16, 16))) == [PLAIN._replace(parent=7)]
    assert events.gaps == 0


def test_numbers_that_are_missing_clear_everything() -> None:
    events = TrtllmEvents()
    polled(events, told(5, "removed", block_hashes=[1]))
    assert polled(events, told(7, "removed", block_hashes=[1])) == [Cleared(), Removed([1])]
    assert polled(events, told(0, "created")) == [Cleared(), Cleared()]
    assert events.gaps == 2


def test_partial_blocks_and_blocks_with_media_end_a_chain() -> None:
    events = TrtllmEvents()
    assert polled(events, told(1, "stored", parent_hash=None, blocks=trtllm_blocks(16, 16, 5))) == [PLAIN]
    (stored,) = polled(
        events, told(2, "stored", parent_hash=None, blocks=trtllm_blocks(16, 16, mm_keys=[{"hash": "a"}]))
    )
    assert stored == PLAIN._replace(mapped=1)
    extra = [{"token_id": at, "token_extra_id": at} for at in range(16, 32)]
    (stored,) = polled(events, told(3, "stored", parent_hash=None, blocks=trtllm_blocks(16, 16, tokens=extra)))
    assert stored == PLAIN._replace(mapped=1)


def test_the_largest_window_is_followed() -> None:
    events = TrtllmEvents()
    assert polled(
        events,
        told(1, "removed", 512, block_hashes=[1]),
        told(2, "removed", 4096, block_hashes=[2]),
        told(3, "removed", 512, block_hashes=[3]),
        told(4, "removed", 4096, block_hashes=[4]),
    ) == [Removed([1]), Cleared(), Removed([2]), Removed([4])]
    assert events.gaps == 0


@pytest.mark.parametrize(
    "body", [b"", b"{", b"{}", b"[1]", b'[{"event_id": "a", "data": {}}]', b'[{"event_id": 1}]', b"[" * 99_999]
)
def test_polled_nonsense_is_nothing(body: bytes) -> None:
    assert list(TrtllmEvents().read(body)) == []


@given(
    VALUES.map(lambda value: msgspec.json.encode(value)),
    st.sampled_from(["created", "stored", "removed", "updated"]),
    VALUES,
)
def test_nothing_that_is_polled_raises(body: bytes, kind: str, value: object) -> None:
    events = TrtllmEvents()
    list(events.read(body))
    entry = msgspec.json.encode(
        [{"event_id": 1, "data": {"type": kind, "blocks": [value], "parent_hash": value, "block_hashes": value}}]
    )
    list(events.read(entry))


# The real thing.


@pytest.mark.parametrize("unit_tokens", [16, 32, 64, 128])
def test_a_real_engine_had_cached_what_its_events_had_told(unit_tokens: int) -> None:
    """Prompts and messages in the order of a session with vLLM 0.32: blocks of 32, a cache too small for all."""
    blocks = EngineBlocks(unit_tokens, lambda adapter, salt: root_of("m", adapter, salt))
    held: set[BlockHash] = set()
    hits = 0
    for line in CAPTURE.read_bytes().splitlines():
        entry = orjson.loads(line)
        if "payload" in entry:
            batch = decode(bytes.fromhex(entry["payload"]))
            assert batch is not None
            for event in batch.events():
                gone, runs = blocks.apply(event)
                held.difference_update(gone)
                held.update(link for run in runs for link in run)
            continue
        whole = array("I", entry["prompt"][:-1])  # the last token is always computed
        chain = block_hashes(root_of("m", "", entry["salt"]), whole, unit_tokens)
        matched = next((at for at, link in enumerate(chain) if link not in held), len(chain))
        assert matched == entry["cached"] // unit_tokens
        hits += matched
    assert hits
    assert blocks.unmapped == {}
