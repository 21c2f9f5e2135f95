"""Demand: what a request may come to, guessed before any work is spent on it, and what it came to.

The guess is from bytes: tokens per byte as this tenant's prompts of this model had them, and output as its answers
were, within what it allows itself. Pictures and sound are no text, and are left out; the settlement has them.

What is charged in the end, by how the request ended:

    served                       what the engine says was used, else what is known without it
    its client left              the same, of what came until then; before it was sent to an engine only the request.
                                 So does who is told that the time has passed which it had set itself
    the client's mistake         the request
    an engine's, or no room      nothing
    to be made in background     as served, and the guess of its output; made good when it is fetched (`stored.py`)
"""

import re
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from gateway.exchange import Exchange
from gateway.tenants import Tenant
from gateway.trace import Trace
from gateway.usage import used
from policies.learned import OutputHabits, PromptHabits
from policies.record import Outcome
from policies.tariff import NOTHING, Amounts, Tariff

REQUEST_ONLY = Amounts(1, 0, 0)
_FREE = (Outcome.REFUSED, Outcome.FAILED)
_CLIENT_ERROR, _DISCONNECTED = Outcome.CLIENT_ERROR, Outcome.DISCONNECTED
MAX_TARIFFS = 10_000
PICTURE, SOUND = b";base64,", b'"input_audio"'
MAX_MEDIA_TYPE, MAX_KEY = 200, 40  # bytes that are looked back
_HOLDS_PICTURE = re.compile(
    rb'"(?:url|image_url|video_url|audio_url|file_data|data|image|video|audio)"\s{0,9}:\s{0,9}"$'
)
_BEGINS_TEXT = re.compile(rb'\s*:\s*"')


class Guess(NamedTuple):
    """What a request may come to."""

    estimate: Amounts
    kept: Amounts
    """Of it, what stays charged if nobody ever tells: the prompt."""
    text_bytes: int
    """What the prompt was guessed from."""
    output_tokens: int = 0


class Demand:
    """Guesses and adds up.

    Args:
        tariff_of: Gives what a tenant's tokens of a model count for, both by name.
        outputs: How long answers are; what is learned elsewhere counts here.
    """

    def __init__(self, tariff_of: Callable[[str, str], Tariff], outputs: OutputHabits) -> None:
        self._tariff_of = tariff_of
        self._outputs = outputs
        self._prompts = PromptHabits()
        self._tariffs: OrderedDict[tuple[str, str], tuple[Tenant, Tariff]] = OrderedDict()

    def guess(self, exchange: Exchange, model: str) -> Guess:
        """Say what a request may come to."""
        tenant, call = exchange.tenant, exchange.call
        tariff = self.tariff(tenant, model)
        length = text_bytes(exchange.body) if exchange.route.prefills and not exchange.route.is_multipart else 0
        prompt_tokens = self._prompts.expected_tokens(tenant.name, model, length)
        output_tokens = 0
        if exchange.route.generates:
            most = 1 << 31 if call.max_tokens is None else call.max_tokens
            output_tokens = self._outputs.allowed_tokens(tenant.name, model, most) * call.choices
            if tenant.max_reserved_output_tokens is not None:
                output_tokens = min(output_tokens, tenant.max_reserved_output_tokens)
        whole, kept = tariff.amounts(prompt_tokens, 0, output_tokens), tariff.amounts(prompt_tokens, 0, 0)
        return Guess(whole, kept, length, output_tokens)

    def came_to(self, tenant: Tenant, trace: Trace, guess: Guess) -> Amounts:
        """Say what an ended request is charged, and learn from it."""
        if trace.outcome in _FREE:
            return NOTHING
        if trace.outcome is _CLIENT_ERROR or (trace.outcome is _DISCONNECTED and not trace.tries):
            return REQUEST_ONLY
        its = used(trace.usage, prompt_tokens=trace.prompt_tokens, counted_tokens=trace.counted_tokens)
        self._prompts.learn(tenant.name, trace.model, guess.text_bytes, its.prompt_tokens)
        cached = its.cached_tokens
        if trace.choice is not None and (trace.usage is None or trace.usage.cached_tokens is None):
            cached = min(its.prompt_tokens, trace.choice.cached_tokens or 0)  # the engine does not tell
        output_tokens = its.output_tokens + trace.advance_tokens
        return self.tariff(tenant, trace.model).amounts(its.prompt_tokens, cached, output_tokens)

    def tariff(self, tenant: Tenant, model: str) -> Tariff:
        """Give what a tenant's tokens of a model count for, and what they cost."""
        known = self._tariffs.get((tenant.name, model))
        if known is None or known[0] is not tenant:
            known = self._tariffs[tenant.name, model] = tenant, self._tariff_of(tenant.name, model)
            if len(self._tariffs) > MAX_TARIFFS:
                self._tariffs.popitem(last=False)
        return known[1]


def text_bytes(body: bytes) -> int:
    """Count the bytes of a body that may be text: without pictures and sound in base64.

    A prompt must not pass for a picture: only a member that holds one counts as one, and only where it reads so.
    """
    length, place = len(body), body.find(PICTURE)
    while place >= 0:
        begin = place + len(PICTURE)
        end = body.find(b'"', begin)
        if end < 0:
            break
        opening = body.rfind(b'"', max(0, place - MAX_MEDIA_TYPE), place)
        if opening >= 0 and _HOLDS_PICTURE.search(body, max(0, opening - MAX_KEY), opening + 1):
            length -= _sealed(body, begin, end)
        place = body.find(PICTURE, end)
    place = body.find(SOUND)
    while place >= 0 and (data := body.find(b'"data"', place)) >= 0:
        end = data + 6
        if match := _BEGINS_TEXT.match(body, end):
            end = body.find(b'"', match.end())
            if end < 0:
                break
            length -= _sealed(body, match.end(), end)
        place = body.find(SOUND, end)
    return max(0, length)


def _sealed(body: bytes, begin: int, end: int) -> int:
    """Count what is base64, or nothing where there are words."""
    return 0 if body.find(b" ", begin, end) >= 0 or body.find(b"\\", begin, end) >= 0 else end - begin
