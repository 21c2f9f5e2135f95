"""Reads prompts without a tokenizer: as bytes, in the order that engines would put them into the prompt.

    tools, as JSON          in the order given, keys as given: a template renders them so
    system prompt           `system`, `instructions`
    messages                role, content, calls, each with what tells it apart from its neighbours
    pictures and the like   four bytes for each token that they count as, made of their content

Four bytes are a token, so one layout gives count and chain: both keep to it. Long prompts are hashed in slices, and the
loop has its turn between them.
"""

import asyncio
from array import array
from collections.abc import Sequence
from typing import Any

import orjson
from xxhash import xxh3_64_intdigest

from gateway.routes import COMPLETION, OTHER, RESPONSES, Route
from gateway.tokens import BYTES_PER_TOKEN, MAX_DEPTH, MAX_VALUES, Reading
from gateway.tokens.encoding import LARGE_BYTES, Turnstile
from gateway.tokens.media import IMAGE_TOKENS, MAX_MEDIA, content_of, is_media
from policies.prefix import block_hashes, media_ids, text_hashes
from policies.request import BlockHash

OPENING_UNITS = 4  # of a completion: enough to tell two kinds of prompt apart, and within most system prompts
SLICE_UNITS = 1024  # hashed in a row: a third of a millisecond
SLICE_IDS = 32 << 10  # made numbers of four bytes in a row: half a millisecond
LEADING_ROLES = frozenset(("system", "developer"))
MAX_LAID_OUT_CHARS = 4 << 20  # a million tokens: what is behind is counted, and not copied twice to be hashed
_END = b"\n"


class TextReader:
    """Reads the prompts of a model that has no tokenizer here.

    Args:
        image_tokens: What a picture, a sound or a file counts as.
    """

    def __init__(self, *, image_tokens: int = IMAGE_TOKENS) -> None:
        self._image_tokens = image_tokens
        self._turnstile = Turnstile()

    async def read(self, route: Route, document: dict[str, Any], root: BlockHash, unit_tokens: int) -> Reading:
        """Estimate a prompt from its bytes; prompts of token ids are exact."""
        ids = ids_prompts(route, document)
        if ids is not None:
            return await read_ids(ids, root, unit_tokens)
        layout = _Layout(self._image_tokens)
        layout.put(route, document)
        if sum(map(len, layout.pieces)) > LARGE_BYTES:
            await self._turnstile.pass_through()
        text = b"".join(layout.pieces)
        system_key = opening_key = None
        if layout.system_pieces is not None:
            system_key = key_of(root, b"".join(layout.pieces[: layout.system_pieces]))
        if layout.opening_pieces is not None:
            opening_key = key_of(root, b"".join(layout.pieces[: layout.opening_pieces]))
        elif not layout.is_conversation and text:
            opening_key = key_of(root, text[: OPENING_UNITS * unit_tokens * BYTES_PER_TOKEN])
        prefix = await hash_text(root, text, unit_tokens)
        size = len(text) + layout.further_bytes
        return Reading(-(-size // BYTES_PER_TOKEN), prefix, unit_tokens, system_key, opening_key, False)


class _Layout:
    """One prompt as pieces of bytes."""

    def __init__(self, image_tokens: int) -> None:
        self._image_tokens = image_tokens
        self.pieces: list[bytes] = []
        self._room = MAX_LAID_OUT_CHARS
        self._media = 0
        self._values = 0
        self.further_bytes = 0
        """Of prompts after the first, and of pictures after MAX_MEDIA."""
        self.system_pieces: int | None = None
        """Pieces up to the end of system prompt and tools, where there are any."""
        self.opening_pieces: int | None = None
        """Pieces up to the end of the first turn of the user, where there is one."""
        self.is_conversation = False

    def put(self, route: Route, document: dict[str, Any]) -> None:
        """Lay a body out."""
        tools = document.get("tools")
        if tools:
            self._put_json(tools)
            self.system_pieces = len(self.pieces)
        for name in ("system", "instructions"):
            if document.get(name):
                self._put(document[name], 0)
                self.system_pieces = len(self.pieces)
        messages = document.get("messages")
        if route.shape is RESPONSES and messages is None:
            given = document.get("input")
            messages = [{"role": "user", "content": given}] if isinstance(given, str) else given
        if isinstance(messages, list):
            self.is_conversation = True
            self._put_messages(messages)
            return
        self._put_prompts(document.get("prompt", document.get("input")))
        for name in ("query", "queries", "text_1", "text_2", "documents", "data_1", "data_2", "content"):
            if document.get(name):
                self._put(document[name], 0)

    def _put_messages(self, messages: list[Any]) -> None:
        is_leading = True
        for message in messages:
            if self._values > MAX_VALUES:
                break
            if not isinstance(message, dict):
                self._put(message, 0)
                continue
            role = message.get("role")
            if isinstance(role, str):
                self.pieces.append(role.encode("utf-8", "surrogatepass"))
            else:
                role = ""
            self._put(message.get("content"), 0)
            for name, value in message.items():
                if value and name not in ("role", "content"):
                    self._put(value, 0)
            self.pieces.append(_END)
            is_leading = is_leading and role in LEADING_ROLES
            if is_leading:
                self.system_pieces = len(self.pieces)
            elif role == "user" and self.opening_pieces is None:
                self.opening_pieces = len(self.pieces)

    def _put_prompts(self, prompts: Any) -> None:
        if not isinstance(prompts, list):
            self._put(prompts, 0)
            return
        for prompt in prompts[:1]:
            self._put(prompt, 0)
        if len(prompts) > 1:
            further = _Layout(self._image_tokens)
            for prompt in prompts[1 : MAX_VALUES + 1]:
                further._put(prompt, 0)
            self.further_bytes += sum(map(len, further.pieces))

    def _put(self, value: Any, depth: int) -> None:
        self._values += 1
        if self._values > MAX_VALUES:
            return
        if isinstance(value, str):
            room, size = self._room, len(value)
            if size > room:
                self.further_bytes += size - room
                value, size = value[:room], room
            self._room -= size
            self.pieces += (value.encode("utf-8", "surrogatepass"), _END)
        elif isinstance(value, list):
            if value and type(value[0]) is int:
                self._put_json(value)
            elif depth < MAX_DEPTH:
                for part in value[: MAX_VALUES + 1]:
                    self._put(part, depth + 1)
        elif isinstance(value, dict) and depth < MAX_DEPTH:
            if is_media(value):
                self._media += 1
                if self._media <= MAX_MEDIA:
                    self.pieces.append(media_ids(content_of(value), self._image_tokens).tobytes())
                else:
                    self.further_bytes += self._image_tokens * BYTES_PER_TOKEN
                return
            for part in value.values():
                if part:
                    self._put(part, depth + 1)

    def _put_json(self, value: Any) -> None:
        try:
            self.pieces.append(orjson.dumps(value))
        except orjson.JSONEncodeError:  # nested more than orjson takes; an engine would refuse it
            return
        self.pieces.append(_END)


def key_of(root: BlockHash, beginning: bytes) -> BlockHash:
    """Name what a prompt begins with."""
    return BlockHash(xxh3_64_intdigest(beginning, root))


async def hash_text(root: BlockHash, text: bytes, unit_tokens: int) -> tuple[BlockHash, ...]:
    """Hash each full unit of text; a long one in slices."""
    chunk = unit_tokens * BYTES_PER_TOKEN
    step = chunk * SLICE_UNITS
    if len(text) <= step:
        return text_hashes(root, text, chunk)
    links: list[BlockHash] = []
    for start in range(0, len(text), step):
        links += text_hashes(links[-1] if links else root, text[start : start + step], chunk)
        await asyncio.sleep(0)
    return tuple(links)


async def hash_ids(root: BlockHash, ids: "array[int]", unit_tokens: int) -> tuple[BlockHash, ...]:
    """Hash each full unit of token ids; many of them in slices."""
    step = unit_tokens * SLICE_UNITS
    if len(ids) <= step:
        return block_hashes(root, ids, unit_tokens)
    links: list[BlockHash] = []
    for start in range(0, len(ids), step):
        links += block_hashes(links[-1] if links else root, ids[start : start + step], unit_tokens)
        await asyncio.sleep(0)
    return tuple(links)


def ids_prompts(route: Route, document: dict[str, Any]) -> Sequence[Sequence[int]] | None:
    """Give prompts that came as token ids: `[int]` or `[[int]]`; None for others."""
    if route.shape not in (COMPLETION, OTHER):
        return None
    prompts = document.get("prompt", document.get("input"))
    if not isinstance(prompts, list) or not prompts:
        return None
    if type(prompts[0]) is int:
        return (prompts,)
    if all(isinstance(prompt, list) and prompt and type(prompt[0]) is int for prompt in prompts):
        return prompts
    return None


async def read_ids(prompts: Sequence[Sequence[int]], root: BlockHash, unit_tokens: int) -> Reading:
    """Read prompts of token ids, as they are."""
    first = prompts[0]
    ids = array("I")
    for start in range(0, len(first), SLICE_IDS):
        if start:
            await asyncio.sleep(0)
        ids.extend(as_ids(first[start : start + SLICE_IDS]))
    prefix = await hash_ids(root, ids, unit_tokens)
    opening_key = key_of(root, ids[: OPENING_UNITS * unit_tokens].tobytes())
    return Reading(sum(map(len, prompts)), prefix, unit_tokens, None, opening_key, True)


def as_ids(values: Sequence[int]) -> "array[int]":
    """Give token ids four bytes each, however large they are."""
    try:
        return array("I", values)
    except (OverflowError, TypeError):  # nobody's vocabulary; the engine refuses it
        return array("I", (value & 0xFFFFFFFF if isinstance(value, int) else 0 for value in values))
