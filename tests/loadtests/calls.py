"""What the tests of this folder say to simulated engines."""

import asyncio
import json
from typing import Any

import aiohttp

from loadtests.server import SimulatedEngine

Json = Any


def chat(content: str = "Hello there", **fields: Json) -> dict[str, Json]:
    """A chat request for ten tokens."""
    body = {"model": "sim", "messages": [{"role": "user", "content": content}], "max_tokens": 10, "ignore_eos": True}
    return {**body, **fields}


def streamed(content: str = "Hello there", **fields: Json) -> dict[str, Json]:
    """A streamed chat request for ten tokens, with usage."""
    return chat(content, stream=True, stream_options={"include_usage": True}, **fields)


async def post(
    http: aiohttp.ClientSession, engine: SimulatedEngine, path: str, body: Json, **headers: str
) -> tuple[int, Json]:
    """Post JSON; give status and parsed body."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with http.post(engine.url + path, json=body, headers=named) as response:
        return response.status, json.loads(await response.read())


async def stream(http: aiohttp.ClientSession, engine: SimulatedEngine, body: Json) -> bytes:
    """Post a chat and read its stream to the end."""
    async with http.post(f"{engine.url}/v1/chat/completions", json=body) as response:
        assert response.status == 200
        return await response.read()


def events(data: bytes) -> list[Json]:
    """Parse the data lines of a stream; [DONE] stays a string."""
    payloads = [line[6:] for line in data.decode().splitlines() if line.startswith("data: ")]
    return [payload if payload == "[DONE]" else json.loads(payload) for payload in payloads]


def text(data: bytes) -> str:
    """Join the content of a chat stream."""
    deltas = [choice["delta"] for event in events(data) if event != "[DONE]" for choice in event["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


async def raw(engine: SimulatedEngine, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send bytes over a connection of their own."""
    reader, writer = await asyncio.open_connection(engine.host, engine.port)
    writer.write(request)
    return reader, writer


def raw_chat(body: Json) -> bytes:
    """Render a chat request as bytes."""
    payload = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(payload)}\r\n\r\n"
    return head.encode() + payload
