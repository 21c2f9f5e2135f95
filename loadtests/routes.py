"""Which path of the simulated engine does what."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

import orjson

from loadtests import answers, ask, messages, metricspage, refusals, responses
from loadtests.ask import Ask, Body
from loadtests.audio import SpeechWire, TranscriptionWire
from loadtests.faults import Fault, Kind
from loadtests.http1 import Exchange
from loadtests.messages import MessagesWire
from loadtests.pooling import ClassifyWire, EmbeddingWire, PooledWire, RerankWire, ScoreWire
from loadtests.responses import ResponsesWire
from loadtests.vocabulary import Vocabulary
from loadtests.wire import ChatWire, Choice, CompletionWire, Wire

if TYPE_CHECKING:
    from loadtests.server import SimulatedEngine

Hits: TypeAlias = dict[Kind, Fault]
Route: TypeAlias = "Callable[[SimulatedEngine, Exchange, Hits], None]"


class Dialect(Protocol):
    """A wire that reads its requests from a JSON body alone."""

    def read(self, body: Body, vocabulary: Vocabulary, /) -> Ask:
        """Read a request."""

    def __call__(self, ask: Ask, choices: Sequence[Choice], id: str, tells_cached: bool, usages: int) -> Wire:
        """Make the wire for its answer."""


def body_of(exchange: Exchange) -> Body:
    """Parse a JSON body.

    Raises:
        Refused: It is none.
    """
    try:
        body = orjson.loads(exchange.body)
    except orjson.JSONDecodeError as exc:
        raise refusals.bad_json(exchange.body, "Expecting value") from exc
    if not isinstance(body, dict):
        raise refusals.bad_type("", "model_attributes_type", "Input should be a valid dictionary", body)
    return body


def _generation(dialect: Dialect) -> Route:
    def generate(engine: "SimulatedEngine", exchange: Exchange, hits: Hits) -> None:
        engine.launch(exchange, hits, dialect, dialect.read(body_of(exchange), engine.vocabulary))

    return generate


def _health(engine: "SimulatedEngine", exchange: Exchange, hits: Hits) -> None:
    exchange.answer(200 if engine.is_healthy else 503, b"", None)


def _version(engine: "SimulatedEngine", exchange: Exchange, hits: Hits) -> None:
    answers.json(exchange, {"version": engine.settings.version})


def _load(engine: "SimulatedEngine", exchange: Exchange, hits: Hits) -> None:
    answers.json(exchange, {"server_load": engine.facts.live})


def _metrics(engine: "SimulatedEngine", exchange: Exchange, hits: Hits) -> None:
    exchange.answer(200, engine.page(), metricspage.CONTENT_TYPE)


def _models(engine: "SimulatedEngine", exchange: Exchange, hits: Hits) -> None:
    created, length = int(engine.meters.started_at), engine.model.max_context_tokens
    answers.json(exchange, answers.models(engine.settings.models, created, length))


def _respond(engine: "SimulatedEngine", exchange: Exchange, hits: Hits) -> None:
    body = body_of(exchange)
    wish, conversation = ResponsesWire.read_with(body, engine.stored, engine.vocabulary)

    def dialect(ask: Ask, choices: Sequence[Choice], id: str, tells_cached: bool, usages: int) -> Wire:
        wire = ResponsesWire(ask, choices, id, tells_cached, usages)
        wire.body, wire.messages = body, conversation
        return wire

    engine.launch(exchange, hits, dialect, wish)


def _kept(engine: "SimulatedEngine", exchange: Exchange) -> Body:
    return responses.find(exchange.path.split("/")[3], engine.stored)


def _response(engine: "SimulatedEngine", exchange: Exchange, hits: Hits) -> None:
    exchange.answer(200, orjson.dumps(_kept(engine, exchange)["response"]))


def _forget_response(engine: "SimulatedEngine", exchange: Exchange, hits: Hits) -> None:
    id = _kept(engine, exchange)["id"]
    del engine.stored[str(id)]
    answers.json(exchange, {"id": id, "object": "response", "deleted": True})


def _cancel_response(engine: "SimulatedEngine", exchange: Exchange, hits: Hits) -> None:
    response = _kept(engine, exchange)["response"]
    assert isinstance(response, dict)
    response["status"] = "cancelled"
    answers.json(exchange, response)


def _input_items(engine: "SimulatedEngine", exchange: Exchange, hits: Hits) -> None:
    answers.json(exchange, responses.input_items(_kept(engine, exchange)))


def _count_tokens(engine: "SimulatedEngine", exchange: Exchange, hits: Hits) -> None:
    answers.json(exchange, {"input_tokens": len(messages.prompt(body_of(exchange), engine.vocabulary))})


def _tokenize(engine: "SimulatedEngine", exchange: Exchange, hits: Hits) -> None:
    body, words = body_of(exchange), engine.vocabulary
    is_chat = "messages" in body
    tokens = messages.prompt(body, words) if is_chat else ask.completion_prompts(body.get("prompt"), words)[0]
    strings = [words.text([token]) for token in tokens] if body.get("return_token_strs") else None
    facts: Body = {"count": len(tokens), "max_model_len": engine.model.max_context_tokens}
    answers.json(exchange, {**facts, "tokens": words.to_ids(tokens), "token_strs": strings})


def _detokenize(engine: "SimulatedEngine", exchange: Exchange, hits: Hits) -> None:
    tokens = body_of(exchange).get("tokens")
    if not isinstance(tokens, list) or not all(isinstance(id, int) for id in tokens):
        raise refusals.bad_type("tokens", "list_type", "Input should be a valid list", tokens)
    answers.json(exchange, {"prompt": engine.vocabulary.text(engine.vocabulary.from_ids(tokens))})


def _transcribe(engine: "SimulatedEngine", exchange: Exchange, hits: Hits) -> None:
    engine.launch(exchange, hits, TranscriptionWire, TranscriptionWire.read(exchange, engine.vocabulary))


ROUTES: dict[tuple[str, str], Route] = {
    ("GET", "/health"): _health,
    ("GET", "/ping"): _health,
    ("POST", "/ping"): _health,
    ("GET", "/version"): _version,
    ("GET", "/load"): _load,
    ("GET", "/metrics"): _metrics,
    ("GET", "/v1/models"): _models,
    ("POST", "/v1/chat/completions"): _generation(ChatWire),
    ("POST", "/v1/completions"): _generation(CompletionWire),
    ("POST", "/v1/embeddings"): _generation(EmbeddingWire),
    ("POST", "/v1/responses"): _respond,
    ("GET", "/v1/responses/{id}"): _response,
    ("DELETE", "/v1/responses/{id}"): _forget_response,
    ("POST", "/v1/responses/{id}/cancel"): _cancel_response,
    ("GET", "/v1/responses/{id}/input_items"): _input_items,
    ("POST", "/v1/messages"): _generation(MessagesWire),
    ("POST", "/v1/messages/count_tokens"): _count_tokens,
    ("POST", "/tokenize"): _tokenize,
    ("POST", "/detokenize"): _detokenize,
    ("POST", "/v1/rerank"): _generation(RerankWire),
    ("POST", "/rerank"): _generation(RerankWire),
    ("POST", "/v1/score"): _generation(ScoreWire),
    ("POST", "/score"): _generation(ScoreWire),
    ("POST", "/classify"): _generation(ClassifyWire),
    ("POST", "/pooling"): _generation(PooledWire),
    ("POST", "/v1/audio/transcriptions"): _transcribe,
    ("POST", "/v1/audio/translations"): _transcribe,
    ("POST", "/v1/audio/speech"): _generation(SpeechWire),
}
METHODS: dict[str, list[str]] = {}
for _method, _path in ROUTES:
    METHODS.setdefault(_path, []).append(_method)


def template(path: str) -> str:
    """Give the path as the table has it."""
    parts = path.split("/")
    if path.startswith("/v1/responses/") and len(parts) > 3:
        parts[3] = "{id}"
    return "/".join(parts)
