"""Wire, ChatWire, CompletionWire: how the simulated engine words its answers, after vLLM 0.32's.

A wire is built for one request. `opening` comes when the first token is ready, `piece` for each token (hot:
its fixed parts are rendered once), `ending` when all choices are done; or `whole`, for an answer that is not
streamed.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from loadtests import ask as asks
from loadtests import refusals
from loadtests.ask import Ask, Body
from loadtests.tokens import Json, Language
from loadtests.vocabulary import Vocabulary

DONE = b"data: [DONE]\n\n"
FINGERPRINT = "vllm-0.32.0-5113a4ed"


@dataclass(slots=True)
class Choice:
    """One of the answers to a request: one sequence in the model."""

    id: int
    """The model's id of the sequence."""
    index: int
    prompt: int
    """Which prompt it answers."""
    language: Language
    output_tokens: int
    reason: str
    due: int = 0
    """Tokens made."""
    sent: int = 0
    cached_tokens: int = 0
    head: bytes = b""
    tail: bytes = b""

    def text(self) -> str:
        """The whole answer."""
        return self.language.text(self.output_tokens)


class Wire(ABC):
    """What the dialects share.

    Args:
        id: Of the answer.
        tells_cached: Whether usage has prompt_tokens_details.
        usages: Usage chunks at the end of a stream that asked for one: 1, or a fault's 0 or 2. 0 means no
            usage at all.
    """

    prefix = "cmpl-"
    media = "application/json"
    """Content type of an answer that is not streamed."""

    def __init__(self, ask: Ask, choices: Sequence[Choice], id: str, tells_cached: bool, usages: int = 1) -> None:
        self.ask = ask
        self.choices = choices
        self.id = self.prefix + id
        self.created = int(time.time())
        self.tells_cached = tells_cached
        self.usages = usages

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.ask.prompts))

    @property
    def cached_tokens(self) -> int:
        return sum({choice.prompt: choice.cached_tokens for choice in reversed(self.choices)}.values())

    def usage(self, made: int, is_stream: bool) -> Json:
        """Render usage at the end of an answer."""
        details: dict[str, int | None] = {"cached_tokens": self.cached_tokens, "created_cache_tokens": 0}
        if not is_stream:
            details["multimodal_tokens"] = None
        usage: dict[str, Json] = {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + made,
            "completion_tokens": made,
            "prompt_tokens_details": details if self.tells_cached else None,
        }
        if not is_stream:
            usage["completion_tokens_details"] = None
        return usage

    @property
    def made(self) -> int:
        """Output tokens of all choices."""
        return sum(choice.output_tokens for choice in self.choices)

    def running_usage(self) -> bytes:
        """Render the usage that every chunk carries when asked to (continuous_usage_stats)."""
        if not self.ask.continuous_usage or not self.usages:
            return b""
        made = sum(choice.sent for choice in self.choices)
        total = self.prompt_tokens + made
        return (
            b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"completion_tokens_details":null}'
            % (self.prompt_tokens, total, made)
        )

    def chunk_head(self, object: str) -> bytes:
        """Render what every chunk begins with, up to its choices."""
        facts = {"id": self.id, "object": object, "created": self.created, "model": self.ask.model}
        return b"data: " + orjson.dumps(facts)[:-1] + b',"choices":['

    def usage_chunks(self, head: bytes) -> bytes:
        """Render the chunks without choices that end a stream which asked for usage."""
        if not self.ask.includes_usage:
            return b""
        usage = orjson.dumps(self.usage(self.made, True))
        return (head + b'],"usage":' + usage + b',"system_fingerprint":"%b"}\n\n' % FINGERPRINT.encode()) * self.usages

    def greeting(self) -> bytes:
        """Render what a stream sends with its head, before any token."""
        return b""

    def opening(self) -> bytes:
        """Render what a stream begins with, once the first token is ready; nothing where none is streamed."""
        return b""

    def piece(self, choice: Choice, text: str) -> bytes:
        """Render one token; `choice.sent` counts it already; nothing, where answers are never streamed."""
        return b""

    def ending(self) -> bytes:
        """Render what comes after the last token of the last choice; nothing, where answers are never streamed."""
        return b""

    @abstractmethod
    def whole(self) -> bytes:
        """Render the answer that is not streamed."""

    def keep(self) -> dict[str, Json] | None:
        """Give what the engine must remember of this answer under its id."""
        return None

    def failure(self, message: str, type: str, code: int) -> bytes:
        """Render an error event."""
        return b"data: " + refusals.error_body(message, type, None, code) + b"\n\n"


class ChatWire(Wire):
    """/v1/chat/completions."""

    prefix = "chatcmpl-"

    @staticmethod
    def read(body: Body, vocabulary: Vocabulary) -> Ask:
        """Read a request.

        Raises:
            Refused: It is wrong.
        """
        messages = body.get("messages")
        if messages is None:
            raise refusals.missing("messages")
        if not isinstance(messages, list):
            raise refusals.bad_type("messages", "list_type", "Input should be a valid list", messages)
        try:
            prompt = vocabulary.talk(messages, body.get("tools"), body)
        except ValueError as exc:
            raise refusals.bad_type(str(exc), "dict_type", "Input should be a valid dictionary", "") from exc
        limit = asks.number(body, "max_completion_tokens", 1) or asks.number(body, "max_tokens", 1)
        return asks.read(body, [prompt], limit, vocabulary)

    def opening(self) -> bytes:
        """Render the chunks that only name the role."""
        head = self.chunk_head("chat.completion.chunk")
        tail = b',"logprobs":null,"finish_reason":null}]' + self.running_usage()
        tail += b',"prompt_token_ids":null,"prompt_text":null}\n\n'
        chunks = b""
        for choice in self.choices:
            chunks += head + b'{"index":%d,"delta":{"role":"assistant","content":""}' % choice.index + tail
            choice.head = head + b'{"index":%d,"delta":{"' % choice.index
            choice.tail = b'},"logprobs":null,"finish_reason":'
        return chunks

    def piece(self, choice: Choice, text: str) -> bytes:
        """Render one token; the last one brings the reason why it is."""
        if choice.sent <= self.ask.reasoning_tokens:
            said = b'reasoning":' + orjson.dumps(text)
        elif self.ask.tool is not None:
            said = b'tool_calls":' + orjson.dumps([self._call(choice, text)])
        else:
            said = b'content":' + orjson.dumps(text)
        chunk = choice.head + said + choice.tail
        if choice.sent < choice.output_tokens:
            end = b'null,"token_ids":null}]'
        else:
            end = b'"%b","stop_reason":null,"token_ids":null}]' % choice.reason.encode()
        if self.ask.continuous_usage:
            end += self.running_usage()
        if choice.sent == choice.output_tokens and not self.ask.includes_usage:
            end += b',"system_fingerprint":"%b"' % FINGERPRINT.encode()
        return chunk + end + b"}\n\n"

    def _call(self, choice: Choice, text: str) -> Json:
        """Render one token of a tool call's arguments; the first one brings the name."""
        if choice.sent != self.ask.reasoning_tokens + 1:
            return {"index": 0, "function": {"arguments": text}}
        function = {"name": self.ask.tool, "arguments": text}
        return {"id": f"call-{self.id}", "type": "function", "index": 0, "function": function}

    def ending(self) -> bytes:
        """Render usage, if asked for, and the end."""
        return self.usage_chunks(self.chunk_head("chat.completion.chunk")) + DONE

    def whole(self) -> bytes:
        """Render the answer that is not streamed."""
        return orjson.dumps(
            {
                "id": self.id,
                "object": "chat.completion",
                "created": self.created,
                "model": self.ask.model,
                "choices": [self._choice(choice) for choice in self.choices],
                "service_tier": None,
                "system_fingerprint": FINGERPRINT,
                **({"usage": self.usage(self.made, False)} if self.usages else {}),
                "prompt_logprobs": None,
                "prompt_token_ids": None,
                "prompt_text": None,
                "kv_transfer_params": None,
                "ec_transfer_params": None,
                "metrics": None,
            }
        )

    def _choice(self, choice: Choice) -> Json:
        words = [choice.language.word(at) for at in range(choice.output_tokens)]
        thought = min(self.ask.reasoning_tokens, len(words))
        said = "".join(words[thought:])
        calls = {}
        if self.ask.tool is not None:
            function = {"name": self.ask.tool, "arguments": said}
            calls = {"tool_calls": [{"id": f"call-{self.id}", "type": "function", "function": function}]}
        return {
            "index": choice.index,
            "message": {
                "role": "assistant",
                "content": None if calls else said,
                "refusal": None,
                "annotations": None,
                "audio": None,
                "function_call": None,
                "reasoning": "".join(words[:thought]) or None,
                **calls,
            },
            "logprobs": None,
            "finish_reason": choice.reason,
            "stop_reason": None,
            "token_ids": None,
            "routed_experts": None,
        }


class CompletionWire(Wire):
    """/v1/completions."""

    @staticmethod
    def read(body: Body, vocabulary: Vocabulary) -> Ask:
        """Read a request.

        Raises:
            Refused: It is wrong.
        """
        if "prompt" not in body:
            raise refusals.missing("prompt")
        limit = asks.number(body, "max_tokens", 0)
        prompts = asks.completion_prompts(body["prompt"], vocabulary)
        ask = asks.read(body, prompts, 16 if limit is None else limit, vocabulary)
        ask.echo = asks.flag(body, "echo")
        return ask

    def opening(self) -> bytes:
        """Render nothing, or the prompt where it is to be echoed."""
        head = self.chunk_head("text_completion")
        chunks = b""
        for choice in self.choices:
            choice.head = head + b'{"index":%d,"text":' % choice.index
            choice.tail = b',"logprobs":null,"finish_reason":'
            if self.ask.echo:
                text = self.ask.vocabulary.text(self.ask.prompts[choice.prompt])
                chunks += choice.head + orjson.dumps(text) + choice.tail + b'null,"stop_reason":null}]}\n\n'
        return chunks

    def piece(self, choice: Choice, text: str) -> bytes:
        """Render one token; the last one brings the reason why it is."""
        is_last = choice.sent == choice.output_tokens
        reason = b'"%b"' % choice.reason.encode() if is_last else b"null"
        end = b',"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]' + self.running_usage() + b"}\n\n"
        return choice.head + orjson.dumps(text) + choice.tail + reason + end

    def ending(self) -> bytes:
        """Render usage, if asked for, and the end."""
        return self.usage_chunks(self.chunk_head("text_completion")) + DONE

    def whole(self) -> bytes:
        """Render the answer that is not streamed."""
        return orjson.dumps(
            {
                "id": self.id,
                "object": "text_completion",
                "created": self.created,
                "model": self.ask.model,
                "choices": [self._choice(choice) for choice in self.choices],
                "service_tier": None,
                "system_fingerprint": FINGERPRINT,
                **({"usage": self.usage(self.made, False)} if self.usages else {}),
                "kv_transfer_params": None,
                "ec_transfer_params": None,
                "metrics": None,
            }
        )

    def _choice(self, choice: Choice) -> Json:
        echo = self.ask.vocabulary.text(self.ask.prompts[choice.prompt]) if self.ask.echo else ""
        return {
            "index": choice.index,
            "text": echo + choice.text(),
            "logprobs": None,
            "finish_reason": choice.reason,
            "stop_reason": None,
            "token_ids": None,
            "prompt_logprobs": None,
            "prompt_token_ids": None,
            "routed_experts": None,
        }
