"""Bodies made of very many very small things take no time of the loop, and no memory to speak of."""

from typing import Any

import orjson
import pytest

from loadtests.faults import Fault, Kind
from tests.fleet_fixtures import CHAT, house

PICTURE = {"type": "image_url", "image_url": {"url": "x"}}


def talk(content: object, **fields: Any) -> bytes:
    return orjson.dumps({"model": "sim", "messages": [{"role": "user", "content": content}], **fields})


BODIES = {
    "pictures": (CHAT, talk([PICTURE] * 20_000)),
    "marks of pictures": (CHAT, talk([PICTURE, {"type": "text", "text": "\x00media 0\x00" * 20_000}])),
    "inputs": ("/v1/embeddings", orjson.dumps({"model": "sim", "input": ["a"] * 100_000})),
    "empty parts": (CHAT, talk([[]] * 90_000)),
    "messages": (CHAT, orjson.dumps({"model": "sim", "messages": [{"role": "user", "content": "a"}] * 18_000})),
    "an unknown field": (CHAT, talk("a", extra=[{"a": {}}] * 45_000)),
    "tools": (CHAT, talk("a", tools=[{"type": "function", "function": {"name": "f"}}] * 15_000)),
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("tokenizer", [None, "engine"])
async def test_p2_many_small_things_are_looked_at_within_bounds(name: str, tokenizer: str | None) -> None:
    path, body = BODIES[name]
    async with house(1, models=[{"name": "sim", "tokenizer": tokenizer}]) as whole:
        await whole.cluster[0].inject(Fault(Kind.STATUS, status=400, body="no", paths=(path,)))  # it need not read that
        assert (await whole.post(path, body)).status == 400
        assert whole.in_flight == [0]


async def test_more_nested_values_than_anybody_needs_are_refused_unparsed() -> None:
    async with house(1) as whole:
        reply = await whole.post(CHAT, talk([[]] * 100_001))
        assert (reply.status, reply.json["error"]["code"]) == (400, "invalid_body")
        assert "100000 objects and arrays" in reply.json["error"]["message"]
