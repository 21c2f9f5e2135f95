"""The simulated engine's own tokenizer, chat template and language. Deterministic, and shared with nothing
of ours.

A token is up to four bytes, and the space before them: about 3.7 bytes of English. Newlines are tokens of
their own, so that what follows a prompt never changes how it was cut: equal text prefixes give equal token
prefixes, and a conversation's next turn begins with the tokens of the last one, its answer included.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

import orjson
import xxhash

from loadtests.kvcache import BLOCK_TOKENS

Json = object
"""A parsed JSON value, not looked into yet."""

_TOKEN = re.compile(rb" ?[^ \n]{1,4}|[ \n]")
REMEMBERED_BYTES = 32_768  # a part cut takes ten times its size: 256 of them 80 MB at worst
_MARK = b"\x01"  # leads the bytes of a token in its id, so that leading zeros survive

_ENGLISH = """
a an the of to in is it on as at by be or we so if all and any are ask bad big but can cold come cost data
deep done each even ever fact fast feel find fine five flow four from full gave give goes gone good grew
grow had half hand hard have head hear held help here high hold home hour idea into just keep kept kind
know lane last late lead left less life like line list live long look lost made main make many mark mean
mind more most move much must name near need next nine node note off once one only open our out over page
part past path play put rare read real rest ring rise road room rule run safe said same see send set show
side size slow some soon sort step stop sure take talk task tell ten test than that them then they this
time told too took true turn two up use very view wait walk want warm was way well went were what when who
why wide will wind wire with word work year yet you
"""
WORDS = tuple(_ENGLISH.split())
CJK = tuple(
    "的一是在不了有和人这中大为上个国我以要他時來用們生到作地於出就分對成會可主發年動同工也能下過子說產種面而方後多定行學法所民得經"
)
EMOJI = tuple("😀😁😂🤣😅😉😍🤔🙃🚀🔥✨🎉👍👀💡🧭🛤🌍🌊🍀🐍🦀🐘🎯📈🧪🔧🔑🧩⏱🥁")
ALPHABETS = {"words": WORDS, "cjk": CJK, "emoji": EMOJI, "mixed": WORDS + CJK + EMOJI}


def cut(text: bytes) -> list[bytes]:
    """Cut text into tokens; joined they are the text again."""
    return _TOKEN.findall(text)


def to_ids(tokens: Iterable[bytes]) -> list[int]:
    """Give tokens their ids; below 2**48, so that JSON readers keep them whole."""
    return [int.from_bytes(_MARK + token, "big") for token in tokens]


def from_ids(ids: Iterable[int]) -> list[bytes]:
    """Give back the tokens; an id that none has becomes a token of its own digits."""
    tokens = []
    for id in ids:
        raw = id.to_bytes(6, "big").lstrip(b"\x00") if 0 <= id < 1 << 48 else b""
        tokens.append(raw[1:] if len(raw) > 1 and raw[:1] == _MARK else b"<%d>" % id)
    return tokens


def root(model: str, salt: str) -> int:
    """Give the hash that a chain of blocks starts from: caches of other models and salts never match."""
    return xxhash.xxh3_64_intdigest(f"{model}\0{salt}".encode())


def chain(tokens: Sequence[bytes], start: int) -> tuple[int, ...]:
    """Hash each full block of tokens, chained to all before it."""
    hashes = []
    for at in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        start = xxhash.xxh3_64_intdigest(b"\0".join(tokens[at : at + BLOCK_TOKENS]), start)
        hashes.append(start)
    return tuple(hashes)


@lru_cache(maxsize=256)
def _cut_often(text: bytes) -> list[bytes]:
    return cut(text)


def talk(messages: Sequence[Json], tools: Json = None) -> list[bytes]:
    """Cut a conversation as Qwen-style templates render it: system text, then tools, in the first block.

    Every part ends in a newline, so that parts can be cut, and remembered, one by one.

    Raises:
        ValueError: A message is not an object with a role.
    """
    parts: list[str] = []
    for at, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ValueError(f"messages.{at}")
        text = content_text(message.get("content"))
        if at == 0 and tools:
            if message["role"] != "system":
                parts.append(f"<|im_start|>system\n{_render_tools(tools)}<|im_end|>\n")
            else:
                text += _render_tools(tools)
        if calls := message.get("tool_calls"):
            text += "\n" + orjson.dumps(calls).decode()
        parts.append(f"<|im_start|>{message['role']}\n{text}<|im_end|>\n")
    parts.append("<|im_start|>assistant\n")
    tokens: list[bytes] = []
    for part in parts:
        raw = part.encode("utf-8", "replace")
        tokens += _cut_often(raw) if len(raw) <= REMEMBERED_BYTES else cut(raw)
    return tokens


def _render_tools(tools: Json) -> str:
    return "\n# Tools\n" + orjson.dumps(tools).decode()


def content_text(content: Json) -> str:
    """Give the text of a message's content; an image or sound stands as the hash of its URL or data."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ValueError("content")
    texts = []
    for part in content:
        if not isinstance(part, dict):
            raise ValueError("content")
        if isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            texts.append(f"<|media:{xxhash.xxh3_64_hexdigest(orjson.dumps(part))}|>")
    return "".join(texts)


class Language:
    """What an engine says to one prompt: an endless text of one token a word, a pure function of its seed."""

    __slots__ = ("_given", "_seed", "_words")

    def __init__(self, seed: int, alphabet: str = "words", given: str | None = None) -> None:
        self._seed = seed
        self._words = ALPHABETS[alphabet]
        self._given = [token.decode("utf-8", "replace") for token in cut(given.encode())] if given else None

    def word(self, at: int) -> str:
        """Give the text of one token, its leading space included."""
        if self._given:
            return self._given[at % len(self._given)]
        pick = ((self._seed + at) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF) >> 40
        word = self._words[pick % len(self._words)]
        return " " + word if at else word

    def token(self, at: int) -> bytes:
        """Give one token, as prompts are cut into them."""
        return self.word(at).encode()

    def text(self, count: int) -> str:
        """Give the text of the first `count` tokens."""
        return "".join([self.word(at) for at in range(count)])
