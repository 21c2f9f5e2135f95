"""The reader of one model while its tokenizer is loaded, and then.

    loading --the tokenizer is there--> exact
       |--there is none----------------> failed: bytes are all that there is, and the log says why

Loading takes seconds, so it is done in a thread, and prompts are read as text meanwhile. Reading the file holds the
interpreter's lock for up to a second at a time, whatever the thread: a tokenizer that is at hand is better loaded
before the gateway listens.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from gateway.routes import Route
from gateway.tokens import PromptReader, Reading
from gateway.tokens.checks import cutter_for, encode_of, fast_encode_of, tokens_as_they_stand
from gateway.tokens.encoding import INLINE_CHARS, Encoder
from gateway.tokens.exact import MAX_TEXT_BYTES, Model, TokenReader
from gateway.tokens.loading import ModelTokenizer, NotLoaded, load_tokenizer
from gateway.tokens.media import IMAGE_TOKENS
from gateway.tokens.segments import Segments
from gateway.tokens.turns import learn
from policies.request import BlockHash

log = logging.getLogger(__name__)

IDS_BYTES = 48 << 20  # of segments: 12 million tokens
FAST_INLINE_CHARS = 16 << 10  # 0.1 ms of a faster tokenizer; 6 ms of the worst text that was found for it
LINKS_BYTES = 16 << 20  # of chains: some 20 million tokens in units of 64


class LoadingReader:
    """Reads as text until the tokenizer is there.

    Args:
        load: Makes the reader; may take seconds, in a thread.
        meanwhile: Reads until then, and if there is none.
        name: The model, for the log.
    """

    def __init__(self, load: Callable[[], PromptReader], meanwhile: PromptReader, name: str) -> None:
        self._load = load
        self._reader = meanwhile
        self._name = name
        self.is_loaded = False
        self.problem: str | None = None
        """Why there is no tokenizer."""

    async def load(self) -> None:
        """Load it; never raises for what is wrong with it."""
        try:
            self._reader = await asyncio.to_thread(self._load)
        except NotLoaded as error:
            self.problem = str(error)
            log.warning("model %s is read without its tokenizer: %s", self._name, error)
        except Exception as error:  # what nobody thought of in somebody's files must not pass in silence
            self.problem = (
                f"its tokenizer cannot be loaded: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
            )
            log.warning("model %s is read without its tokenizer: %s", self._name, self.problem, exc_info=True)
        else:
            self.is_loaded = True
            log.info("the tokenizer of model %s is loaded", self._name)

    async def read(self, route: Route, document: dict[str, Any], root: BlockHash, unit_tokens: int) -> Reading:
        """Read a prompt with what there is."""
        return await self._reader.read(route, document, root, unit_tokens)


def checked(name: str, loaded: ModelTokenizer, *, is_fast_wanted: bool = True) -> Model:
    """Make a model of a tokenizer: with a faster one if that agrees, cutting texts where that changes nothing."""
    exact = encode_of(loaded.tokenizer)
    tokens = [token.content for token in tokens_as_they_stand(loaded.tokenizer)]
    turns = learn(loaded.templates, tokens) if loaded.templates else None
    cutter = cutter_for(loaded.tokenizer, exact, sorted(turns.openers) if turns else (), name)
    fast = fast_encode_of(loaded.tokenizer, exact, name) if is_fast_wanted else None
    inline_chars = FAST_INLINE_CHARS if fast else INLINE_CHARS
    return Model(name, fast or exact, cutter, loaded.templates, turns, loaded.before, loaded.after, inline_chars)


def token_reader(
    source: str,
    encoder: Encoder,
    fallback: PromptReader,
    segments: Segments | None = None,
    *,
    chat_template: str | None = None,
    variables: Mapping[str, Any] | None = None,
    image_tokens: int = IMAGE_TOKENS,
    max_text_bytes: int = MAX_TEXT_BYTES,
    is_fast_wanted: bool = True,
) -> TokenReader:
    """Load a tokenizer and make its reader; takes seconds.

    Raises:
        NotLoaded: none can be had from there.
    """
    model = checked(source, load_tokenizer(source, chat_template=chat_template), is_fast_wanted=is_fast_wanted)
    return TokenReader(
        model,
        encoder,
        segments or memory_of(),
        fallback,
        variables=variables,
        image_tokens=image_tokens,
        max_text_bytes=max_text_bytes,
    )


def memory_of(*, ids_bytes: int = IDS_BYTES, links_bytes: int = LINKS_BYTES) -> Segments:
    """Make a memory with a seed that nobody knows."""
    return Segments(secrets.randbits(64), max_ids_bytes=ids_bytes, max_links_bytes=links_bytes)
