"""Readers for tests, with the small tokenizer that the repository has."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from gateway.routes import ENGINE_ROUTES
from gateway.tokens import Reading
from gateway.tokens.encoding import Encoder
from gateway.tokens.exact import Model, TokenReader
from gateway.tokens.loaded import checked
from gateway.tokens.loading import load_tokenizer
from gateway.tokens.plain import TextReader
from gateway.tokens.segments import Segments
from policies.prefix import root_of

SMALL = Path(__file__).parents[3] / "loadtests" / "data" / "tokenizer"
CHAT = ENGINE_ROUTES["/v1/chat/completions"]
COMPLETION = ENGINE_ROUTES["/v1/completions"]
TOKENIZE = ENGINE_ROUTES["/tokenize"]
ROOT = root_of("small")
SEED = 7

Make = Callable[..., TokenReader]


@pytest.fixture(scope="session")
def small() -> Model:
    """The small tokenizer without a faster one beside it: what is installed does not change the tests."""
    return checked("small", load_tokenizer(str(SMALL)), is_fast_wanted=False)


@pytest.fixture
async def encoder() -> AsyncIterator[Encoder]:
    encoder = Encoder()
    yield encoder
    await encoder.close()


@pytest.fixture
def segments() -> Segments:
    return Segments(SEED, max_ids_bytes=1 << 20, max_links_bytes=1 << 20)


@pytest.fixture
def reader(small: Model, encoder: Encoder, segments: Segments) -> TokenReader:
    return TokenReader(small, encoder, segments, TextReader())


def shared(one: Reading, other: Reading) -> int:
    """Count the hashes that both begin with."""
    pairs = zip(one.prefix, other.prefix, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one.prefix), len(other.prefix)))
