"""ResponsesWire: /v1/responses, streamed with `event:` lines and without [DONE], and what is kept of an
answer."""

from collections.abc import Mapping

import orjson

from loadtests import ask as asks
from loadtests import refusals
from loadtests.ask import Ask, Body
from loadtests.refusals import Refused
from loadtests.tokens import Json, content_text
from loadtests.vocabulary import Vocabulary
from loadtests.wire import Choice, Wire

PART_TYPES = {"assistant": "output_text"}


class ResponsesWire(Wire):
    """/v1/responses. `body` and `messages` are set by the route, which knows what went before."""

    prefix = "resp_"
    body: Body
    messages: list[Json]

    _next_event = 0

    @staticmethod
    def read_with(body: Body, stored: Mapping[str, Body], vocabulary: Vocabulary) -> tuple[Ask, list[Json]]:
        """Read a request and the conversation it goes on with.

        Raises:
            Refused: It is wrong, or the answer it follows is not here.
        """
        if "input" not in body:
            raise refusals.missing("input")
        messages: list[Json] = []
        before = body.get("previous_response_id")
        if isinstance(before, str):
            messages += _messages_of(find(before, stored))
        elif isinstance(body.get("instructions"), str):
            messages.append({"role": "system", "content": body["instructions"]})
        given = body["input"]
        if isinstance(given, str):
            messages.append({"role": "user", "content": given})
        elif isinstance(given, list):
            messages += given
        else:
            raise refusals.bad_type("input", "string_type", "Input should be a valid string", given)
        try:
            prompt = vocabulary.talk(messages, body.get("tools"), body)
        except ValueError as exc:
            raise refusals.bad_type("input", "dict_type", "Input should be a valid dictionary", "") from exc
        return asks.read(body, [prompt], asks.number(body, "max_output_tokens", 1), vocabulary), messages

    def _response(self, status: str) -> Body:
        choice = self.choices[0]
        is_over = status != "in_progress"
        return {
            "id": self.id,
            "created_at": self.created,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": self.body.get("instructions"),
            "metadata": self.body.get("metadata"),
            "model": self.ask.model,
            "object": "response",
            "output": [self._message(choice, "completed")] if is_over else [],
            "parallel_tool_calls": True,
            "temperature": self.body.get("temperature", 1.0),
            "tool_choice": self.body.get("tool_choice", "auto"),
            "tools": self.body.get("tools", []),
            "top_p": self.body.get("top_p", 1.0),
            "background": False,
            "max_output_tokens": self.body.get("max_output_tokens"),
            "previous_response_id": self.body.get("previous_response_id"),
            "service_tier": "auto",
            "status": status,
            "truncation": "disabled",
            "usage": self._usage() if is_over and self.usages else None,
            "user": self.body.get("user"),
        }

    def _usage(self) -> Json:
        return {
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": {"cached_tokens": self.cached_tokens if self.tells_cached else 0},
            "output_tokens": self.made,
            "output_tokens_details": {"reasoning_tokens": 0, "tool_output_tokens": 0},
            "total_tokens": self.prompt_tokens + self.made,
        }

    @property
    def _item_id(self) -> str:
        return "msg_" + self.id.removeprefix(self.prefix)

    def _part(self, text: str) -> Json:
        return {"annotations": [], "text": text, "type": "output_text", "logprobs": None}

    def _message(self, choice: Choice, status: str) -> dict[str, Json]:
        content = [self._part(choice.text())] if status == "completed" else []
        return {
            "id": self._item_id,
            "content": content,
            "role": "assistant",
            "status": status,
            "type": "message",
        }

    @property
    def _status(self) -> str:
        return "incomplete" if self.choices[0].reason == "length" else "completed"

    def _event(self, type: str, **facts: Json) -> bytes:
        data = orjson.dumps({"type": type, "sequence_number": self._next_event, **facts})
        self._next_event += 1
        return b"event: %b\ndata: %b\n\n" % (type.encode(), data)

    def _about(self) -> dict[str, Json]:
        return {"item_id": self._item_id, "output_index": 0, "content_index": 0}

    def greeting(self) -> bytes:
        """Render what is sent before the prompt is even looked at."""
        response = self._response("in_progress")
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def opening(self) -> bytes:
        """Render the start of the message and of its one part."""
        choice = self.choices[0]
        choice.head = b"event: response.output_text.delta\ndata: " + orjson.dumps(self._about())[:-1]
        item = self._message(choice, "in_progress")
        return self._event("response.output_item.added", output_index=0, item=item) + self._event(
            "response.content_part.added", **self._about(), part=self._part("")
        )

    def piece(self, choice: Choice, text: str) -> bytes:
        """Render one token."""
        number = self._next_event
        self._next_event += 1
        delta = orjson.dumps(text)
        facts = b',"type":"response.output_text.delta","sequence_number":%d,"delta":%b,"logprobs":[]}\n\n'
        return choice.head + facts % (number, delta)

    def ending(self) -> bytes:
        """Render the ends of part, message and response; usage is in the last."""
        choice = self.choices[0]
        text = choice.text()
        return b"".join(
            (
                self._event("response.output_text.done", **self._about(), text=text, logprobs=[]),
                self._event("response.content_part.done", **self._about(), part=self._part(text)),
                self._event("response.output_item.done", output_index=0, item=self._message(choice, "completed")),
                self._event("response.completed", response=self._response(self._status)),  # cut short or not
            )
        )

    def whole(self) -> bytes:
        """Render the answer that is not streamed."""
        return orjson.dumps(self._response(self._status))

    def keep(self) -> Body | None:
        """Keep the response and the conversation, unless told not to."""
        if self.body.get("store") is False:
            return None
        response = self._response(self._status)
        answer = {"role": "assistant", "content": self.choices[0].text()}
        return {
            "id": response["id"],
            "response": response,
            "input": self.messages,
            "messages": [*self.messages, answer],
        }


def find(id: str, stored: Mapping[str, Body]) -> Body:
    """Give what was kept of an answer.

    Raises:
        Refused: It is not here.
    """
    kept = stored.get(id)
    if kept is None:
        raise Refused(404, f"Response with id '{id}' not found.", "invalid_request_error", "response_id")
    return kept


def _messages_of(kept: Body) -> list[Json]:
    messages = kept["messages"]
    assert isinstance(messages, list)
    return messages


def input_items(kept: Body) -> Body:
    """List what an answer was given, newest first."""
    given = kept["input"]
    assert isinstance(given, list)
    items = [
        {
            "id": f"msg_{at:016x}",
            "type": "message",
            "role": message["role"],
            "status": "completed",
            "content": [
                {
                    "type": PART_TYPES.get(str(message["role"]), "input_text"),
                    "text": content_text(message.get("content")),
                }
            ],
        }
        for at, message in enumerate(given)
    ][::-1]
    first, last = (items[0]["id"], items[-1]["id"]) if items else (None, None)
    return {"object": "list", "data": items, "first_id": first, "last_id": last, "has_more": False}
