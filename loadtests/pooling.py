"""Dialects that only read: embeddings, pooling, classification, scores and ranks. Numbers are drawn from the
prompt."""

import base64
import struct
from random import Random

import orjson

from loadtests import ask as asks
from loadtests import refusals
from loadtests.ask import Ask, Body
from loadtests.tokens import Json
from loadtests.vocabulary import Vocabulary
from loadtests.wire import Choice, Wire

DIMENSIONS = 64


def _drawn(wire: Wire, choice: Choice) -> Random:
    return Random(b"".join(wire.ask.prompts[choice.prompt]))


class PoolingWire(Wire):
    """What they share: prompts without output."""

    field = "input"
    """Where the prompts are."""

    @classmethod
    def read(cls, body: Body, vocabulary: Vocabulary) -> Ask:
        """Read a request.

        Raises:
            Refused: It is wrong.
        """
        if cls.field not in body:
            raise refusals.missing(cls.field)
        ask = asks.read(body, asks.completion_prompts(body[cls.field], vocabulary), 0, vocabulary)
        ask.is_stream = False
        return ask

    def _listed(self, data: list[Json]) -> bytes:
        facts = {"id": self.id, "object": "list", "created": self.created, "model": self.ask.model}
        return orjson.dumps({**facts, "data": data, **({"usage": self._usage()} if self.usages else {})})

    def _usage(self) -> Json:
        usage = {"prompt_tokens": self.prompt_tokens, "total_tokens": self.prompt_tokens}
        return {**usage, "completion_tokens": 0, "prompt_tokens_details": None}


class EmbeddingWire(PoolingWire):
    """/v1/embeddings."""

    prefix = "embd-"

    @classmethod
    def read(cls, body: Body, vocabulary: Vocabulary) -> Ask:
        """Read a request.

        Raises:
            Refused: It is wrong.
        """
        encoding = body.get("encoding_format", "float")
        if encoding not in ("float", "base64"):
            raise refusals.bad_type("encoding_format", "literal_error", "Input should be 'float' or 'base64'", encoding)
        ask = super().read(body, vocabulary)
        ask.is_base64 = encoding == "base64"
        return ask

    def whole(self) -> bytes:
        """Render a vector for each prompt, as floats or as base64 of little-endian float32."""
        data: list[Json] = []
        for choice in self.choices:
            chance = _drawn(self, choice)
            vector: Json = [round(chance.uniform(-1, 1), 6) for _ in range(DIMENSIONS)]
            if self.ask.is_base64:
                assert isinstance(vector, list)
                vector = base64.b64encode(struct.pack(f"<{DIMENSIONS}f", *vector)).decode()
            data.append({"index": choice.index, "object": "embedding", "embedding": vector})
        return self._listed(data)


class PooledWire(PoolingWire):
    """/pooling."""

    prefix = "pool-"

    def whole(self) -> bytes:
        """Render a vector for each prompt."""
        data: list[Json] = []
        for choice in self.choices:
            chance = _drawn(self, choice)
            vector = [round(chance.uniform(-1, 1), 6) for _ in range(DIMENSIONS)]
            data.append({"index": choice.index, "object": "pooling", "data": vector})
        return self._listed(data)


class ClassifyWire(PoolingWire):
    """/classify."""

    prefix = "classify-"

    def whole(self) -> bytes:
        """Render a label for each prompt."""
        data: list[Json] = []
        for choice in self.choices:
            share = round(_drawn(self, choice).random(), 6)
            label = "LABEL_0" if share >= 0.5 else "LABEL_1"
            data.append({"index": choice.index, "label": label, "probs": [share, 1 - share], "num_classes": 2})
        return self._listed(data)


class ScoreWire(PoolingWire):
    """/v1/score: one text against others."""

    prefix = "score-"

    @classmethod
    def read(cls, body: Body, vocabulary: Vocabulary) -> Ask:
        """Read a request.

        Raises:
            Refused: It is wrong.
        """
        return _pairs(body, "text_1", "text_2", vocabulary)

    def whole(self) -> bytes:
        """Render a score for each pair."""
        scores = [(choice.index, round(_drawn(self, choice).random(), 6)) for choice in self.choices]
        return self._listed([{"index": index, "object": "score", "score": score} for index, score in scores])


class RerankWire(PoolingWire):
    """/v1/rerank: documents by what they have to do with a query."""

    prefix = "rerank-"

    @classmethod
    def read(cls, body: Body, vocabulary: Vocabulary) -> Ask:
        """Read a request.

        Raises:
            Refused: It is wrong.
        """
        return _pairs(body, "query", "documents", vocabulary)

    def whole(self) -> bytes:
        """Render the documents, best first."""
        scored = [(round(_drawn(self, choice).random(), 6), choice) for choice in self.choices]
        scored.sort(key=lambda pair: -pair[0])
        results = [
            {"index": choice.index, "document": {"text": self._document(choice)}, "relevance_score": score}
            for score, choice in scored
        ]
        usage = {"prompt_tokens": self.prompt_tokens, "total_tokens": self.prompt_tokens}
        return orjson.dumps({"id": self.id, "model": self.ask.model, "usage": usage, "results": results})

    def _document(self, choice: Choice) -> str:
        text = self.ask.vocabulary.text(self.ask.prompts[choice.prompt])
        return text.partition("\n")[2]


def _pairs(body: Body, one: str, others: str, vocabulary: Vocabulary) -> Ask:
    """Read one text and a list of others as a prompt for each pair, a line each."""
    for name in (one, others):
        if name not in body:
            raise refusals.missing(name)
    first, rest = body[one], body[others]
    if not isinstance(first, str):
        raise refusals.bad_type(one, "string_type", "Input should be a valid string", first)
    texts = rest if isinstance(rest, list) else [rest]
    if not all(isinstance(text, str) for text in texts):
        raise refusals.bad_type(others, "string_type", "Input should be a valid string", rest)
    ask = asks.read(body, [vocabulary.cut(f"{first}\n{text}") for text in texts], 0, vocabulary)
    ask.is_stream = False
    return ask
