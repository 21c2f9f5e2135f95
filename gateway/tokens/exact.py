"""Reads prompts as their engine does: the model's chat template, then the model's tokenizer.

    body --talk--> conversation --content--> what a template takes --template--> text
    text --cut--> segments --followed, as far as they are known; else encoded--> ids --chain--> hashes

What cannot be rendered is estimated: it is an engine that says what is wrong with it. So is what is longer than
`max_text_bytes`, and what would have to wait too long for its ids: an exact count that comes late helps nobody.
"""

import asyncio
import logging
import re
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gateway.routes import Route, Shape
from gateway.tokens import BYTES_PER_TOKEN, PromptReader, Reading, estimate_prompt_tokens
from gateway.tokens.content import NONCE, OddBody, normalise, normalise_tools
from gateway.tokens.encoding import INLINE_CHARS, LARGE_BYTES, Encode, Encoder
from gateway.tokens.media import IMAGE_TOKENS
from gateway.tokens.plain import OPENING_UNITS, ids_prompts, key_of, read_ids
from gateway.tokens.segments import Chain, Cutter, Segments
from gateway.tokens.talk import Talk, has_system_prompt, keys_of, talk_of, texts_of
from gateway.tokens.template import ChatTemplates, NotRendered
from gateway.tokens.turns import Turns
from policies.prefix import media_ids
from policies.request import BlockHash

log = logging.getLogger("kvlane.tokens")

MAX_TEXT_BYTES = 2 << 20  # half a million tokens; the list of them is made in one go, 10 ms, with the loop waiting
RENDERED_INLINE_BYTES = 128 << 10  # longer conversations, or of more messages, are rendered in a thread
RENDERED_INLINE_MESSAGES = 100
SEGMENTS_IN_A_ROW = 128  # read anew before the loop has its turn: half a millisecond
MARK = re.compile(f"\x00media {NONCE} ([0-9]+)\x00")
MAX_TEXTS = 2048  # of one request, as OpenAI's embeddings take; more are estimated
CHARS_IN_A_ROW = 8192  # of texts that are encoded on the loop, one after the other
_EXACT_PATHS = frozenset(("/v1/embeddings", "/tokenize", "/classify", "/pooling"))


class Model(NamedTuple):
    """What is read with: one model's tokenizer and template, checked."""

    name: str
    encode: Encode
    cutter: Cutter
    templates: ChatTemplates | None
    turns: Turns | None
    before: Sequence[int] = ()
    after: Sequence[int] = ()
    inline_chars: int = INLINE_CHARS
    """Texts up to this length are encoded on the loop."""


class TokenReader:
    """Reads the prompts of one model.

    Args:
        model: Its tokenizer and template.
        encoder: Threads, shared with other models.
        segments: What it remembers.
        fallback: For what cannot be read.
        variables: Of the template, as the engines are started with them.
        image_tokens: What a picture counts as.
        max_text_bytes: Longer prompts are estimated.
    """

    def __init__(
        self,
        model: Model,
        encoder: Encoder,
        segments: Segments,
        fallback: PromptReader,
        *,
        variables: Mapping[str, Any] | None = None,
        image_tokens: int = IMAGE_TOKENS,
        max_text_bytes: int = MAX_TEXT_BYTES,
    ) -> None:
        self._model = model
        self._encoder = encoder
        self._segments = segments
        self._fallback = fallback
        self._variables = dict(variables or {})
        self._image_tokens = image_tokens
        self._max_text_tokens = max_text_bytes // BYTES_PER_TOKEN
        self._before = array("I", model.before).tobytes()
        self._after = array("I", model.after).tobytes()
        self.faults = 0
        """Prompts that failed to be read in a way that nobody thought of."""

    async def read(self, route: Route, document: dict[str, Any], root: BlockHash, unit_tokens: int) -> Reading:
        """Read a prompt; what cannot be read is estimated."""
        ids = ids_prompts(route, document)
        if ids is not None:
            return await read_ids(ids, root, unit_tokens)
        messages = document.get("messages")
        if isinstance(messages, list) and len(messages) > RENDERED_INLINE_MESSAGES:
            await self._encoder.turnstile.pass_through()
        size_tokens = estimate_prompt_tokens(document)
        if size_tokens <= self._max_text_tokens:
            try:
                reading = await self._read(route, document, root, unit_tokens, size_tokens)
            except (OddBody, NotRendered, UnicodeEncodeError):
                reading = None
            except Exception:  # a fault of ours, or of a template; the request goes on, and the log has the first
                reading = None
                self.faults += 1
                if self.faults == 1:
                    log.exception("model %s: a prompt could not be read, and is estimated", self._model.name)
            if reading is not None:
                return reading
        return await self._fallback.read(route, document, root, unit_tokens)

    async def _read(
        self, route: Route, document: dict[str, Any], root: BlockHash, unit_tokens: int, size_tokens: int
    ) -> Reading | None:
        if size_tokens * BYTES_PER_TOKEN > LARGE_BYTES:
            await self._encoder.turnstile.pass_through()
        talk = talk_of(route, document, self._variables)
        if talk is not None:
            reading = await self._read_talk(talk, root, unit_tokens, size_tokens)
            return None if reading is None else _truncated(reading, document)
        texts = texts_of(document)
        has_affixes = document.get("add_special_tokens", True) is not False
        if not 0 < len(texts) <= MAX_TEXTS:
            return None
        chains: list[Chain] = []
        in_a_row = 0
        for text in texts:
            in_a_row += len(text) + 1
            if in_a_row > CHARS_IN_A_ROW:
                await asyncio.sleep(0)
                in_a_row = 0
            chain = await self._chain(text, [], root, unit_tokens, has_affixes)
            if chain is None:
                return None
            chains.append(chain)
        first, tokens = chains[0], sum(chain.tokens for chain in chains)
        system_key, opening_key = self._keys(texts[0], root)
        if opening_key is None:
            hashes = first.hashes[:OPENING_UNITS]
            opening_key = hashes[-1] if hashes else key_of(root, texts[0].encode())
        is_exact = route.shape is Shape.COMPLETION or route.path in _EXACT_PATHS
        reading = Reading(tokens, tuple(first.hashes), unit_tokens, system_key, opening_key, is_exact)
        return _truncated(reading, document)

    async def _read_talk(self, talk: Talk, root: BlockHash, unit_tokens: int, size_tokens: int) -> Reading | None:
        media: list[bytes] = []
        is_small = size_tokens * BYTES_PER_TOKEN <= RENDERED_INLINE_BYTES
        if is_small and len(talk.messages) <= RENDERED_INLINE_MESSAGES:
            text = self._render(talk, media)
        else:
            text = await self._encoder.run(lambda: self._render(talk, media))
        chain = await self._chain(text, media, root, unit_tokens, talk.add_special_tokens)
        if chain is None:
            return None
        system_key, opening_key = self._talk_keys(talk, text, root)
        is_exact = talk.is_whole and not media
        return Reading(chain.tokens, tuple(chain.hashes), unit_tokens, system_key, opening_key, is_exact)

    def _render(self, talk: Talk, media: list[bytes]) -> str:
        if self._model.templates is None:
            raise NotRendered("the model has no chat template")
        tools = normalise_tools(talk.tools)
        template = self._model.templates.choose(has_tools=tools is not None)
        messages = normalise(
            talk.messages, media, by_part=template.is_by_part, knows_developers=template.knows_developers
        )
        return template.render(
            messages,
            tools,
            add_generation_prompt=talk.add_generation_prompt,
            continue_final_message=talk.continue_final_message,
            documents=talk.documents,
            variables=talk.variables,
        )

    async def _chain(
        self, text: str, media: Sequence[bytes], root: BlockHash, unit_tokens: int, has_affixes: bool
    ) -> Chain | None:
        """Read a text; None: too much else is being read."""
        chain = self._segments.start(root, unit_tokens)
        if has_affixes and self._before:
            chain.pass_over(self._before)
        if media:
            *texts, text = self._put_pictures(text, media)
            for piece in texts:
                if isinstance(piece, bytes):
                    chain.pass_over(piece)
                elif not await self._extend(chain, piece):
                    return None
        if not await self._extend(chain, text):
            return None
        if has_affixes and self._after:
            chain.pass_over(self._after)
        return chain

    def _put_pictures(self, text: str, media: Sequence[bytes]) -> list[Any]:
        """Cut a text at its pictures; those that the template left out come before it."""
        *parts, last = MARK.split(text)
        found = {int(number) for number in parts[1::2]}
        pieces: list[str | bytes] = [self._picture(media, at) for at in range(len(media)) if at not in found]
        for piece, number in zip(parts[::2], parts[1::2], strict=True):
            pieces += (piece, self._picture(media, int(number)))
        return [*pieces, last]

    def _picture(self, media: Sequence[bytes], at: int) -> bytes:
        return media_ids(media[at], self._image_tokens).tobytes()

    async def _extend(self, chain: Chain, text: str) -> bool:
        """Read the next of a prompt's text; False: too much else is being read."""
        if not text:
            return True
        is_large = len(text) > LARGE_BYTES
        if is_large:
            await self._encoder.turnstile.pass_through()
        pieces = self._model.cutter.cut(text)
        segments = [piece.encode() for piece in pieces]
        at = _follow(chain, segments, 0)
        if at == len(segments):
            return True
        memory = self._segments
        known: dict[int, bytes] = {}
        missing: dict[int, str] = {}
        keys = [memory.ids_key(segment) for segment in segments[at:]]
        for key, piece in zip(keys, pieces[at:], strict=True):
            ids = memory.ids.get(key)
            if ids is None:
                missing[key] = piece
            else:
                known[key] = ids
        if missing:
            ids = await self._encoder.encode(
                self._model.encode,
                "".join(missing.values()),
                (self._model.name, *missing),
                inline_chars=self._model.inline_chars,
            )
            if ids is None:
                return False
            if is_large:
                await self._encoder.turnstile.pass_through()
            for key, part in zip(missing, self._model.cutter.cut_ids(ids, len(missing)), strict=True):
                known[key] = part
                memory.ids.put(key, part, len(part))
            behind = _follow(chain, segments, at)  # another request may have been here meanwhile
            keys, at = keys[behind - at :], behind
        for count, (key, segment) in enumerate(zip(keys, segments[at:], strict=True), 1):
            await chain.extend(segment, known[key])
            if not count % SEGMENTS_IN_A_ROW:
                await asyncio.sleep(0)
        return True

    def _keys(self, text: str, root: BlockHash) -> tuple[BlockHash | None, BlockHash | None]:
        """Name head and opening of a rendered conversation, as they stand in its text."""
        turns = self._model.turns
        head = turns.head_of(text) if turns else None
        if turns is None or head is None:
            return None, None
        system_key = None if head in turns.bare_heads or not head else key_of(root, head.encode())
        return system_key, key_of(root, turns.opening_of(text, head).encode())

    def _talk_keys(self, talk: Talk, text: str, root: BlockHash) -> tuple[BlockHash | None, BlockHash | None]:
        turns = self._model.turns
        has_system = has_system_prompt(talk)
        if turns and (turns.holds_system or not has_system) and (turns.holds_tools or not talk.tools):
            system_key, opening_key = self._keys(text, root)
            if opening_key is not None:
                return system_key if has_system or talk.tools else None, opening_key
        return keys_of(talk, root)  # the text does not show it in one place


def _follow(chain: Chain, segments: Sequence[bytes], at: int) -> int:
    """Follow what is known from a segment on; give the first that is not."""
    while at < len(segments) and chain.follow(segments[at]):
        at += 1
    return at


def _truncated(reading: Reading, document: Mapping[str, Any]) -> Reading:
    """Take off what the client has vLLM cut away: the beginning, and with it whatever could be shared."""
    limit = document.get("truncate_prompt_tokens")
    if type(limit) is not int or not 0 < limit < reading.prompt_tokens:
        return reading
    return reading._replace(prompt_tokens=limit, prefix=())
