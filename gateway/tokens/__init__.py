"""A prompt as its model reads it: how many tokens, and what it shares with others.

Three readers, each a PromptReader, from the cheapest to the nearest:

    plain.TextReader      no tokenizer: bytes of text, four a token; always there, and what the others fall back to
    exact.TokenReader     the model's own tokenizer and chat template: the ids that the engine will compute with
    asked.EngineReader    an engine of the model is asked for the ids, where no tokenizer can be had here

A reading never fails. A body that no engine would take is estimated, and the engine says what is wrong with it.

Text has 4.1 to 4.7 UTF-8 bytes a token in the median message, so four is a little on the safe side. Prompts of token
ids are exact. Images, audio and other base64 never count: a picture of 2 MB is not half a million tokens.
"""

from typing import Any, NamedTuple, Protocol

from gateway.routes import Route
from gateway.tokens.media import is_media
from policies.request import BlockHash


class Reading(NamedTuple):
    """A prompt as its model reads it.

    Invariant: `len(prefix) * unit_tokens <= prompt_tokens`. Of several prompts in one request the tokens are the sum
    and everything else is the first's.
    """

    prompt_tokens: int
    prefix: tuple[BlockHash, ...]
    """One hash a full unit, chained, rooted in `root`."""
    unit_tokens: int
    system_key: BlockHash | None
    """What system prompt and tools come to, chained from `root`; None without any."""
    opening_key: BlockHash | None
    """The same with the first turn of the user; of a completion that is no conversation, its first units."""
    is_exact: bool
    """False: an estimate. Chains of estimates and of exact readings have nothing in common."""


class PromptReader(Protocol):
    """Reads the prompts of one model."""

    async def read(self, route: Route, document: dict[str, Any], root: BlockHash, unit_tokens: int) -> Reading:
        """Read the prompt of a parsed body; never raises for what a client sent.

        Args:
            route: Where the body was sent to.
            document: It is not changed.
            root: What engines keep caches apart by: `policies.prefix.root_of`.
            unit_tokens: Tokens per hash; a multiple of the engine's block.
        """
        ...


BYTES_PER_TOKEN = 4
_TEXT_FIELDS = frozenset(
    (
        "messages",
        "prompt",
        "input",
        "system",
        "instructions",
        "tools",
        "query",
        "documents",
        "text_1",
        "text_2",
        "chat_template_kwargs",
    )
)
MAX_DEPTH = 32  # deeper structures are nobody's prompt


MAX_VALUES = 20_000  # of one prompt are looked at, some 20 ms: a prompt of more is no prompt
UNCOUNTED = 1 << 30  # tokens: so much, for all that anybody knows


def estimate_prompt_tokens(document: dict[str, Any]) -> int:
    """Estimate the prompt tokens of a parsed body, by what engines would put into the prompt."""
    text_bytes = ids = 0
    left = [MAX_VALUES]
    for name in document.keys() & _TEXT_FIELDS:
        value = document[name]
        if value:
            more_bytes, more_ids = _measure(value, 0, left)
            text_bytes += more_bytes
            ids += more_ids
    return UNCOUNTED if left[0] < 0 else ids + -(-text_bytes // BYTES_PER_TOKEN)


def _measure(value: Any, depth: int, left: list[int]) -> tuple[int, int]:
    """Give the bytes of text and the number of token ids within a value; `left` says how many more may be looked at."""
    if isinstance(value, str):
        return _bytes_of(value), 0
    if isinstance(value, list):
        if type(value[0]) is int:
            return 0, len(value)
        parts = value
    elif isinstance(value, dict):
        if is_media(value):
            return 0, 0
        parts = list(value.values())
    else:
        return 0, 0
    text_bytes = ids = 0
    left[0] -= len(parts)
    if depth < MAX_DEPTH and left[0] >= 0:
        for part in parts:
            if type(part) is str:
                text_bytes += len(part) if part.isascii() else _bytes_of(part)
            elif part:
                more_bytes, more_ids = _measure(part, depth + 1, left)
                text_bytes += more_bytes
                ids += more_ids
    return text_bytes, ids


def _bytes_of(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
