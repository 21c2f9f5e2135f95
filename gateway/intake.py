"""What routing may know of a request: its size, its identity and its like, from its body, its headers and its past.

    model      by its own name, whatever the client calls it
    prompt     read as the model reads it: tokens, and the chain of hashes over them
    ring key   prompt_cache_key, else the session header, else what its like begin with
    class      of service, and its tenant's weight
    cache      salted where its tenant's are kept apart: index, ring and engine go by the same salt
    output     allowed: max_tokens, else the 90th percentile of its tenant and model; expected: their mean
    pools      by length

The parsed body is dropped here, as soon as its prompt has been read.
"""

from collections.abc import Callable, Mapping
from typing import Any

from xxhash import xxh3_64_intdigest

from gateway.classes import Classes
from gateway.exchange import Exchange
from gateway.fleet import Fleet, ModelFacts
from gateway.hops import POOL, TOKENIZE
from gateway.relay import Answer
from gateway.routes import ENGINE_ROUTES, Route
from gateway.salt import salt_of
from gateway.tenants import Tenant
from gateway.tokens import PromptReader, Reading
from gateway.trace import Trace
from gateway.usage import Usage
from policies.keys import ring_key
from policies.learned import OutputHabits
from policies.pools import Standing
from policies.request import UNIT_TOKENS, BlockHash, InferenceRequest

SURE_SHARE = 0.6  # of an estimate from bytes: hardly any text has more than 6.7 bytes a token
AS_TEXT = ENGINE_ROUTES["/v1/completions"]
NO_ROOT = BlockHash(0)
NO_READING = Reading(0, (), UNIT_TOKENS, None, None, True)


class Intake:
    """Reads requests.

    Args:
        reader_of: Gives the reader of a model by its own name.
        habits: How long answers are; it learns.
        session_header: Names a session, in lower case; None where no header does.
        secret_of: Gives the secret by which a tenant's caches are kept apart; None where they are shared.
        shape_of: Makes the shape of a prompt, for the doctor; None: nobody asks.
    """

    def __init__(
        self,
        fleet: Fleet,
        reader_of: Callable[[str], PromptReader],
        classes: Classes,
        session_header: str | None,
        habits: OutputHabits,
        secret_of: Callable[[Tenant], bytes | None],
        shape_of: Callable[[Route, dict[str, Any], int], str | None] | None = None,
    ) -> None:
        self._fleet = fleet
        self._reader_of = reader_of
        self._classes = classes
        self._session_header = session_header
        self._secret_of = secret_of
        self._habits = habits
        self._shape_of = shape_of

    async def read(self, exchange: Exchange, facts: ModelFacts, headers: Mapping[str, str], trace: Trace) -> Standing:
        """Complete the exchange's inference request, and find the pools that it belongs to.

        Raises:
            ContextLengthExceeded: it fits into none.
            ModelNotAllowed: its tenant's caches are kept apart, and no engine of the model can do that on this route.
            Overloaded: it is not known yet whether one can.
        """
        trace.begin(TOKENIZE)
        call, route, tenant = exchange.call, exchange.route, exchange.tenant.name
        document = call.document
        reading, key = NO_READING, None
        tier = document.get("service_tier") if document is not None else None
        service_class = self._classes.class_of(headers, tier, exchange.tenant.service_class)
        salt = document.get("cache_salt") if document is not None else None
        secret = self._secret_of(exchange.tenant) if route.prefills else None
        if secret is not None:
            salt = call.cache_salt = salt_of(secret, salt)
        if document is not None and route.prefills:
            root = facts.root_with(salt)
            reading = await self._reader_of(facts.name).read(route, document, root, facts.unit_tokens)
            key = self._key(document, headers, root, reading)
            if self._shape_of is not None:
                trace.prefix_shape = self._shape_of(route, document, len(exchange.body))
        call.document = document = None
        prompt_tokens = reading.prompt_tokens
        allowed = call.max_tokens
        if allowed is None:
            most = min(facts.most_tokens, 1 << 31) - prompt_tokens
            allowed = self._habits.allowed_tokens(tenant, facts.name, max(1, int(most)))
        expected = self._habits.expected_tokens(tenant, facts.name, allowed) * call.choices
        known = exchange.inference
        exchange.inference = inference = InferenceRequest(
            id=known.id,
            model=facts.name,
            tenant=tenant,
            deadline=known.deadline,
            prompt_tokens=prompt_tokens,
            output_tokens=expected,
            prefix=reading.prefix,
            ring_key=key,
            allowed_tokens=allowed,
            unit_tokens=reading.unit_tokens,
            service_class=service_class,
            weight=exchange.tenant.weight,
            needs=route.path if secret is not None else "",
        )
        trace.prompt_tokens = prompt_tokens
        trace.service_class = service_class
        if route.prefills:
            trace.prefix, trace.unit_tokens, trace.ring_key = reading.prefix, reading.unit_tokens, key
        sure = prompt_tokens if reading.is_exact else int(SURE_SHARE * prompt_tokens)
        trace.begin(POOL)
        standing = self._fleet.standing(inference, sure, route.prompt_field)
        trace.pool = standing.own.name
        return standing

    def learn(self, exchange: Exchange, usage: Usage) -> None:
        """Note how long an answer became."""
        if usage.output_tokens is not None and exchange.route.generates:
            choices = exchange.call.choices
            self._habits.learn(exchange.tenant.name, exchange.inference.model, usage.output_tokens // choices)

    async def count(self, exchange: Exchange, answer: Answer) -> int:
        """Count the output of an answer that has ended, where its engine did not: JSON is read as its model reads it.

        Not for where nobody may wait: `answer.counted_tokens` is there at once, and the same for streams.
        """
        if not exchange.route.generates:
            return 0
        texts = answer.texts
        if not texts:
            return answer.counted_tokens
        document = {"prompt": texts, "add_special_tokens": False}
        reading = await self._reader_of(exchange.inference.model).read(AS_TEXT, document, NO_ROOT, UNIT_TOKENS)
        return reading.prompt_tokens

    def _key(
        self, document: dict[str, Any], headers: Mapping[str, str], root: BlockHash, reading: Reading
    ) -> BlockHash | None:
        """Give what the request goes by on the ring."""
        cache_key = document.get("prompt_cache_key")
        named = cache_key if isinstance(cache_key, str) else None
        if not named and self._session_header is not None:
            named = headers.get(self._session_header)
        if named:
            return BlockHash(xxh3_64_intdigest(named.encode("utf-8", "surrogatepass"), root))
        turns = document.get("messages", document.get("input"))
        return ring_key(reading.system_key, reading.opening_key, is_answered=_is_answered(turns))


def _is_answered(turns: object) -> bool:
    """Whether a conversation holds an answer."""
    if isinstance(turns, list):
        for turn in turns:
            if isinstance(turn, dict) and turn.get("role") == "assistant":
                return True
    return False
