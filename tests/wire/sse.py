"""Streams as vLLM words them, to be sent by scripted engines and read by tests."""

import orjson

from tests.wire.client import chat, events

STREAM = chat(stream=True)
WITH_USAGE = chat(stream=True, stream_options={"include_usage": True})
DONE = b"data: [DONE]\n\n"
USAGE = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}\n\n'


def token(text: str, **fields: object) -> bytes:
    """Write the event of one token."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None, **fields}
    return b"data: " + orjson.dumps({"id": "c", "choices": [choice]}) + b"\n\n"


ROLE = b'data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'


def text_of(body: bytes) -> str:
    """Read what a stream says, which must be whole."""
    *chunks, last = events(body)
    assert last == "[DONE]"
    return "".join(choice["delta"].get("content") or "" for data in chunks for choice in orjson.loads(data)["choices"])
