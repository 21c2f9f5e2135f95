"""MessagesWire: /v1/messages, Anthropic's shape, as vLLM serves it."""

import orjson

from loadtests import ask as asks
from loadtests import refusals
from loadtests.ask import Ask, Body
from loadtests.refusals import Refused
from loadtests.tokens import Json
from loadtests.vocabulary import Vocabulary
from loadtests.wire import DONE, Choice, Wire

STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}


class MessagesWire(Wire):
    """/v1/messages."""

    prefix = "chatcmpl-"

    @staticmethod
    def read(body: Body, vocabulary: Vocabulary) -> Ask:
        """Read a request.

        Raises:
            Refused: It is wrong.
        """
        limit = asks.number(body, "max_tokens", 1)
        if limit is None:
            raise refusals.missing("max_tokens")
        return asks.read(body, [prompt(body, vocabulary)], limit, vocabulary)

    def _usage(self, made: int) -> Json:
        usage = {"input_tokens": self.prompt_tokens, "output_tokens": made}
        if self.tells_cached:
            usage["cache_read_input_tokens"] = self.cached_tokens
        return usage

    def _message(self, content: list[Json], reason: str | None, made: int) -> Json:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self.ask.model,
            "stop_reason": reason,
            "stop_sequence": None,
            "usage": self._usage(made) if self.usages else {"input_tokens": 0, "output_tokens": 0},
        }

    def opening(self) -> bytes:
        """Render the start of the message and of its one block."""
        choice = self.choices[0]
        choice.head = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
        choice.head += b'"delta":{"type":"text_delta","text":'
        block = {"type": "text", "text": ""}
        return _event("message_start", message=self._message([], None, 0)) + _event(
            "content_block_start", index=0, content_block=block
        )

    def piece(self, choice: Choice, text: str) -> bytes:
        """Render one token."""
        return choice.head + orjson.dumps(text) + b"}}\n\n"

    def ending(self) -> bytes:
        """Render the ends of block and message; usage is in message_delta."""
        delta = {"stop_reason": STOP_REASONS.get(self.choices[0].reason, self.choices[0].reason)}
        usage = {"usage": self._usage(self.made)} if self.usages else {}
        end = _event("content_block_stop", index=0) + _event("message_delta", delta=delta, **usage)
        return end + _event("message_stop") + DONE

    def whole(self) -> bytes:
        """Render the answer that is not streamed."""
        choice = self.choices[0]
        content: list[Json] = [{"type": "text", "text": choice.text()}]
        return orjson.dumps(self._message(content, STOP_REASONS.get(choice.reason, choice.reason), self.made))


def prompt(body: Body, vocabulary: Vocabulary) -> list[bytes]:
    """Read the tokens of a conversation.

    Raises:
        Refused: It is wrong.
    """
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise refusals.bad_type("messages", "list_type", "Input should be a valid list", messages)
    if system := body.get("system"):
        if isinstance(system, list) and all(isinstance(block, dict) and "text" in block for block in system):
            system = "".join(str(block["text"]) for block in system)
        messages = [{"role": "system", "content": system}, *messages]
    try:
        return vocabulary.talk(messages, body.get("tools"), body)
    except ValueError as exc:
        raise refusals.bad_type(str(exc), "dict_type", "Input should be a valid dictionary", "") from exc


def error_body(refused: Refused) -> bytes:
    """Render a refusal in Anthropic's shape."""
    return orjson.dumps({"type": "error", "error": {"type": refused.type, "message": refused.message}})


def _event(type: str, **facts: Json) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (type.encode(), orjson.dumps({"type": type, **facts}))
