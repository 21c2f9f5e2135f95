"""Which paths a tenant can reach, and what is special about each.

An allow-list: engines serve control routes beside the API (sleep, weight updates, cache resets, adapters to load), and
none of them may ever be reached through the gateway. A path is matched as it came, byte for byte, without decoding or
normalising: `/v1/../sleep` and `/v1/chat%2Fcompletions` are simply unknown.
"""

import re
from dataclasses import dataclass
from enum import Enum
from urllib.parse import unquote


class Shape(Enum):
    """Whose wire format a route speaks: how a stream ends, where usage and text stand."""

    CHAT = "chat"
    COMPLETION = "completion"
    RESPONSES = "responses"
    MESSAGES = "messages"
    OTHER = "other"

    __hash__ = object.__hash__  # enums' own is written in Python, and these are looked up by all the time


CHAT, COMPLETION, RESPONSES, MESSAGES, OTHER = Shape
# each by its own name: before Python 3.12, to ask the class takes 0.2 us


@dataclass(frozen=True, slots=True)
class Route:
    """One path that is served by engines."""

    path: str
    shape: Shape = OTHER
    is_multipart: bool = False
    prompt_field: str | None = None
    """The member that holds the prompt: `param` of a context-length error."""
    generates: bool = False
    """Whether the answer is generated token by token, so that output counts."""
    prefills: bool = True
    """Whether the engine computes the prompt, so that it costs work and may be cached."""

    @property
    def steering_fields(self) -> frozenset[str]:
        """Members that no client may set here: vLLM names a stored response as `request_id` says, whoever's it was."""
        return frozenset(("request_id",)) if self.shape is RESPONSES else frozenset()

    @property
    def has_usage_chunk(self) -> bool:
        """Whether usage comes in a chunk of its own at the end of a stream, if it is asked for."""
        return self.shape is CHAT or self.shape is COMPLETION


ENGINE_ROUTES = {
    route.path: route
    for route in (
        Route("/v1/chat/completions", CHAT, prompt_field="messages", generates=True),
        Route("/v1/completions", COMPLETION, prompt_field="prompt", generates=True),
        Route("/v1/embeddings", prompt_field="input"),
        Route("/v1/responses", RESPONSES, prompt_field="input", generates=True),
        Route("/v1/messages", MESSAGES, prompt_field="messages", generates=True),
        Route("/v1/messages/count_tokens", prompt_field="messages", prefills=False),
        Route("/v1/audio/transcriptions", is_multipart=True),
        Route("/v1/audio/translations", is_multipart=True),
        Route("/v1/audio/speech", prompt_field="input"),
        Route("/tokenize", prefills=False),
        Route("/detokenize", prefills=False),
        Route("/v1/rerank"),
        Route("/v1/score"),
        Route("/classify"),
        Route("/pooling"),
    )
}
"""POST routes with a body that names a model."""

STORED_RESPONSE = re.compile(r"/v1/responses/(?P<id>[A-Za-z0-9_-]{1,128})(?P<rest>/cancel|/input_items)?")
STORED_RESPONSE_METHODS = {None: ("GET", "DELETE"), "/cancel": ("POST",), "/input_items": ("GET",)}
MODELS_PATH = "/v1/models"


def model_id_of(path: str) -> str | None:
    """Give the model of `/v1/models/{id}`; ids contain "/" and arrive percent-encoded or not."""
    prefix = MODELS_PATH + "/"
    return unquote(path[len(prefix) :], errors="replace") if path.startswith(prefix) else None
