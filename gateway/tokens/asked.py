"""Reads prompts by asking an engine of the model: for models whose tokenizer cannot be had here.

    vLLM, SGLang   POST /tokenize with the messages, or with the prompt
    llama.cpp      POST /apply-template with the messages, then /tokenize with what comes of them

It costs the engine its tokenizing twice and the request a round trip, so answers are kept by what was asked. Whatever
comes back that is no list of ids, or nothing in time, is an estimate. Pictures are not sent.
"""

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import Any

import orjson
from xxhash import xxh3_128_intdigest

from gateway.routes import Route, Shape
from gateway.tokens import PromptReader, Reading, estimate_prompt_tokens
from gateway.tokens.content import OddBody
from gateway.tokens.media import is_media
from gateway.tokens.plain import OPENING_UNITS, as_ids, hash_ids, ids_prompts, key_of, read_ids
from gateway.tokens.segments import Recent
from gateway.tokens.talk import Talk, keys_of, talk_of, texts_of
from policies.request import BlockHash

Ask = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any] | None]]
"""Post a body to a path of some engine of the model; None for whatever goes wrong, within a deadline of its own."""

ANSWER_BYTES = 16 << 20  # of answers that are kept
MAX_PROMPTS = 8  # of one request; each is a round trip
MAX_ASKED_TOKENS = 256 << 10  # longer prompts are not sent twice


class Dialect(Enum):
    """How an engine is asked."""

    VLLM = "vllm"
    LLAMACPP = "llamacpp"


class EngineReader:
    """Reads the prompts of one model.

    Args:
        model: Its name, as engines know it.
        ask: Asks one of them.
        dialect: How.
        fallback: For what they do not answer.
        variables: Of the template, as the engines are started with them.
    """

    def __init__(
        self,
        model: str,
        ask: Ask,
        dialect: Dialect,
        fallback: PromptReader,
        *,
        variables: Mapping[str, Any] | None = None,
        answer_bytes: int = ANSWER_BYTES,
    ) -> None:
        self._model = model
        self._ask = ask
        self._dialect = dialect
        self._fallback = fallback
        self._variables = dict(variables or {})
        self._answers: Recent[bytes] = Recent(answer_bytes)

    async def read(self, route: Route, document: dict[str, Any], root: BlockHash, unit_tokens: int) -> Reading:
        """Read a prompt; what the engine does not answer is estimated."""
        ids = ids_prompts(route, document)
        if ids is not None:
            return await read_ids(ids, root, unit_tokens)
        reading = None
        if estimate_prompt_tokens(document) <= MAX_ASKED_TOKENS:
            try:
                reading = await self._read(route, document, root, unit_tokens)
            except (OddBody, orjson.JSONEncodeError):
                reading = None
        return reading or await self._fallback.read(route, document, root, unit_tokens)

    async def _read(self, route: Route, document: dict[str, Any], root: BlockHash, unit_tokens: int) -> Reading | None:
        talk = talk_of(route, document, self._variables)
        if talk is not None:
            if has_pictures(talk):
                return None
            found = await self._answer(self._chat(talk), self._chat_ids)
            if found is None:
                return None
            system_key, opening_key = keys_of(talk, root)
            prefix = await hash_ids(root, found, unit_tokens)
            return Reading(len(found), prefix, unit_tokens, system_key, opening_key, talk.is_whole)
        texts = texts_of(document)
        if not 0 < len(texts) <= MAX_PROMPTS:
            return None
        has_affixes = document.get("add_special_tokens", True) is not False
        prompts = await asyncio.gather(
            *(self._answer(self._prompt(text, has_affixes), self._prompt_ids) for text in texts)
        )
        whole = [prompt for prompt in prompts if prompt is not None]
        if len(whole) < len(prompts):
            return None
        prefix = await hash_ids(root, whole[0], unit_tokens)
        opening_key = key_of(root, whole[0][: OPENING_UNITS * unit_tokens].tobytes())
        is_exact = route.shape is Shape.COMPLETION
        return Reading(sum(map(len, whole)), prefix, unit_tokens, None, opening_key, is_exact)

    async def _answer(
        self, body: dict[str, Any], ask: Callable[[dict[str, Any]], Awaitable[object]]
    ) -> "array[int] | None":
        key = xxh3_128_intdigest(orjson.dumps(body))
        kept = self._answers.get(key)
        if kept is not None:
            return array("I", kept)
        found = await ask(body)
        if not isinstance(found, list) or not found:
            return None
        if not all(type(number) is int and number >= 0 for number in found):
            return None
        ids = as_ids(found)
        data = ids.tobytes()
        self._answers.put(key, data, len(data))
        return ids

    def _chat(self, talk: Talk) -> dict[str, Any]:
        body: dict[str, Any] = {"messages": talk.messages}
        if talk.tools:
            body["tools"] = talk.tools
        if talk.variables:
            body["chat_template_kwargs"] = talk.variables
        body["add_generation_prompt"] = talk.add_generation_prompt
        if self._dialect is Dialect.VLLM:
            body |= {"model": self._model, "continue_final_message": talk.continue_final_message}
            body["add_special_tokens"] = talk.add_special_tokens
        return body

    async def _chat_ids(self, body: dict[str, Any]) -> object:
        if self._dialect is Dialect.VLLM:
            return (await self._ask("/tokenize", body) or {}).get("tokens")
        prompt = (await self._ask("/apply-template", body) or {}).get("prompt")
        return await self._prompt_ids(self._prompt(prompt, True)) if isinstance(prompt, str) else None

    def _prompt(self, text: str, has_affixes: bool) -> dict[str, Any]:
        if self._dialect is Dialect.VLLM:
            return {"model": self._model, "prompt": text, "add_special_tokens": has_affixes}
        return {"content": text, "add_special": has_affixes}

    async def _prompt_ids(self, body: dict[str, Any]) -> object:
        return (await self._ask("/tokenize", body) or {}).get("tokens")


def has_pictures(talk: Talk) -> bool:
    """Whether anything in a conversation is no text."""
    if not isinstance(talk.messages, list):
        raise OddBody("messages are a list")
    for message in talk.messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise OddBody("a message is an object with a role")
        content = message.get("content")
        if isinstance(content, list) and any(isinstance(part, dict) and is_media(part) for part in content):
            return True
    return False
