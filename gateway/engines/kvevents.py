"""Reads the KV events of all engines: what they publish, and what TensorRT-LLM is polled for. Pure; none of it raises.

A published message is a batch: msgpack of `[time, events, rank]`, the rank missing from old engines. An event is a map
with a `type` (vLLM from 0.24, SGLang now, TensorRT-LLM) or an array that begins with it, whose fields at the end may be
missing (before). Types, keys and fields that are not known are passed over, and so is an event that makes no sense; the
others of its batch count.

Hashes come as ints, signed (SGLang) or not, or as bytes, of which the low 64 bits are kept: as vLLM does itself where
it publishes ints. What vLLM's hashes depend on beside the tokens stands in `extra_keys`, by block: the adapter's name,
the salt (in a chain's first block), and what tells media and embeddings apart, with which our own chain cannot go on.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import orjson

from policies.events import DEVICE, Cleared, Event, Removed, Stored

ON_DEVICE = (None, "GPU", DEVICE)
WHOLE = (None, "full_attention", "mla_attention", "sink_full_attention")
"""Kinds of layers that keep every block of a prompt; those with a window do not tell what can be hit."""
FIRST_GROUP = (None, 0)
STORED_FIELDS = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
)
REMOVED_FIELDS = ("block_hashes", "medium", "group_idx")
BAD = (msgspec.MsgspecError, orjson.JSONDecodeError, RecursionError, UnicodeDecodeError, ValueError)
MISSHAPEN = (TypeError, ValueError, OverflowError, KeyError, IndexError, AttributeError)
LOW_BYTES = 8


class Batch(NamedTuple):
    """One message, its events not read yet."""

    time: float
    """Seconds, by the engine's clock."""
    rank: int
    """Of the engine's data parallel ranks; 0 where it has none or does not say."""
    entries: Sequence[object]

    def events(self) -> Iterator[Event]:
        """Read the events, one by one: a batch may be long."""
        for entry in self.entries:
            try:
                event = _event(entry)
            except MISSHAPEN:
                continue
            if event is not None:
                yield event


def decode(payload: bytes) -> Batch | None:
    """Take a published message apart; None where it is none."""
    try:
        content = msgspec.msgpack.decode(payload)
        when, entries, *rest = content
        if not isinstance(entries, list):
            return None
        rank = rest[0] if rest and isinstance(rest[0], int) else 0
        return Batch(float(when), rank, entries)
    except (*BAD, *MISSHAPEN):
        return None


def _event(entry: object) -> Event | None:
    """Read one event; None where it is of no use.

    Raises:
        TypeError, ValueError, OverflowError, KeyError, IndexError: it makes no sense.
    """
    if isinstance(entry, dict):
        name, fields = entry.get("type"), entry
    elif isinstance(entry, list) and entry:
        name, *values = entry
        names = STORED_FIELDS if name == "BlockStored" else REMOVED_FIELDS
        fields = dict(zip(names, values, strict=False))
    else:
        return None
    if name == "BlockStored":
        return _stored(fields)
    if name == "BlockRemoved":
        return Removed(_hashes(fields["block_hashes"]), _medium(fields.get("medium")), _count(fields.get("group_idx")))
    return Cleared() if name == "AllBlocksCleared" else None


def _stored(fields: Mapping[str, object]) -> Stored | None:
    kind, group = fields.get("kv_cache_spec_kind"), _count(fields.get("group_idx"))
    if kind not in WHOLE or (kind is None and group not in FIRST_GROUP):
        return None
    hashes, parent, block_tokens = _hashes(fields["block_hashes"]), fields["parent_block_hash"], fields["block_size"]
    if not isinstance(block_tokens, int) or block_tokens < 1:
        raise ValueError("no block size")
    adapter, salt, mapped = _text(fields.get("lora_name")), _text(fields.get("cache_salt")) or "", None
    extra_keys = fields.get("extra_keys")
    if isinstance(extra_keys, list):
        named, mapped = _read_extra_keys(extra_keys, adapter, is_first=parent is None)
        salt = salt or named
    if adapter is None and fields.get("lora_id") is None:
        adapter = ""
    return Stored(
        hashes,
        None if parent is None else _hash(parent),
        _tokens(fields["token_ids"]),
        block_tokens,
        adapter,
        salt,
        mapped,
        _medium(fields.get("medium")),
        group or 0,
    )


def _read_extra_keys(extra_keys: Sequence[object], adapter: str | None, *, is_first: bool) -> tuple[str, int | None]:
    """Find the salt, and how many blocks come before the first with anything that tokens do not tell."""
    salt = ""
    for at, keys in enumerate(extra_keys):
        if not isinstance(keys, list):
            continue
        if adapter is not None and keys[:1] == [adapter]:
            keys = keys[1:]
        if is_first and not at and keys and isinstance(keys[-1], str):
            salt, keys = keys[-1], keys[:-1]
        if keys:
            return salt, at
    return salt, None


class TrtllmEvents:
    """Reads the JSON that TensorRT-LLM's `/kv_cache_events` is polled for; each answer goes on where the last ended.

    Numbers have gaps where its buffer ran over: then nothing is certain any more, and all is cleared. Caches of layers
    with a window tell of shorter windows: only the largest is followed, and a larger one than before begins anew.
    """

    def __init__(self) -> None:
        self.next_id: int | None = None
        self.gaps = 0
        self.is_whole = False
        """Whether all events were read from the first on, or from the last time that it began anew."""
        self._window = 0

    def read(self, body: bytes) -> Iterator[Event]:
        """Read the events of one answer, in order."""
        try:
            entries = orjson.loads(body)
        except BAD:
            return
        for entry in entries if isinstance(entries, list) else ():
            try:
                yield from list(self._events(_map(entry)))
            except MISSHAPEN:
                continue

    def _events(self, entry: Mapping[str, object]) -> Iterator[Event]:
        number, data, window = entry["event_id"], _map(entry["data"]), entry.get("window_size")
        if not isinstance(number, int):
            return
        if self.next_id is not None and number != self.next_id:
            self.gaps += 1
            self.is_whole = False
            yield Cleared()
        self.next_id = number + 1
        if isinstance(window, int) and window != self._window:
            if window < self._window:
                return
            if self._window:
                yield Cleared()
            self._window = window
        match data["type"]:
            case "created" if number == 0:
                self.is_whole = True
                yield Cleared()
            case "stored":
                yield _trtllm_stored(data)
            case "removed":
                yield Removed(_hashes(data["block_hashes"]))


def _trtllm_stored(data: Mapping[str, object]) -> Stored:
    """Read stored blocks, those of the size of the first: a shorter last one is partial.

    Where they lie does not matter: one that moves to the host is told as `updated`, and when it is gone from everywhere
    as `removed`.
    """
    blocks = [_map(block) for block in _list(data["blocks"])]
    tokens = [[_map(token) for token in _list(block["tokens"])] for block in blocks]
    size = len(tokens[0])
    if not size:
        raise ValueError("a block of no tokens")
    whole = next((at for at, each in enumerate(tokens) if len(each) != size), len(tokens))
    is_told = [
        not block.get("mm_keys") and not any(token.get("token_extra_id") for token in each)
        for block, each in zip(blocks, tokens, strict=True)
    ]
    parent = data["parent_hash"]
    return Stored(
        [_hash(block["block_hash"]) for block in blocks[:whole]],
        None if parent is None else _hash(parent),
        _tokens([token["token_id"] for each in tokens[:whole] for token in each]),
        size,
        mapped=None if all(is_told) else is_told.index(False),
    )


def _map(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise TypeError("no object")
    return value


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError("no list")
    return value


def _hashes(value: object) -> list[int]:
    return [_hash(each) for each in _list(value)]


def _hash(value: object) -> int:
    if isinstance(value, int):
        return value
    if isinstance(value, bytes):
        return int.from_bytes(value[-LOW_BYTES:], "big")
    raise TypeError("no hash")


def _tokens(value: object) -> "array[int]":
    """Read token ids; of pairs, as SGLang sends them with a draft model, the first of each.

    Raises:
        TypeError, OverflowError: they are no ids.
    """
    ids = _list(value)
    if ids and isinstance(ids[0], list):
        ids = [_list(pair)[0] for pair in ids]
    return array("I", ids)  # type: ignore[arg-type]  # it looks at each one itself


def _medium(value: object) -> str:
    if value in ON_DEVICE:
        return DEVICE
    return value if isinstance(value, str) else "unknown"


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) else None
