"""Stored responses: which engine holds one, and whether this tenant may know.

`previous_response_id` and `/v1/responses/{id}` go to the engine that made the response. Where it was made is remembered
(`homes.py`); after a restart nobody remembers, and then every engine is asked, unless tenants are told apart by keys:
nothing says whose an unknown response is.

What a response comes to that is made in the background (`background: true`) is known when somebody fetches it. Until
then limits are charged the guess that was reserved for its output: nobody keeps engines busy for nothing by fetching
nothing, or by leaving before an engine has said what there is to fetch. Who fetches it is charged what it came to; what
was too much is given back to budgets, on the day on which it was charged, since a budget of another day must not have
it. Accounts count what was fetched, and no guesses.
"""

import asyncio
import re
import time
from contextlib import closing

from gateway.attempt import ask
from gateway.exchange import Exchange
from gateway.fleet import Fleet
from gateway.homes import Debt, Homes
from gateway.members import Member
from gateway.openai import Call
from gateway.relay import Answer
from gateway.routes import Route, Shape
from gateway.tenants import Tenants
from gateway.trace import Trace
from gateway.upstream import Upstream
from gateway.usage import Usage
from policies.endpoint import Endpoint

STORED_ROUTE = Route("/v1/responses/{id}", Shape.RESPONSES, prefills=False)
SANE_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
DAY_S = 86_400
ASK_WITHIN_S = 5.0  # an engine looks it up in memory


class StoredResponses:
    """Finds the engine that holds a response."""

    def __init__(self, homes: Homes, fleet: Fleet, tenants: Tenants, upstream: Upstream) -> None:
        self._homes = homes
        self._fleet = fleet
        self._tenants = tenants
        self._upstream = upstream
        self._clock = asyncio.get_running_loop().time

    def learn(self, answer: Answer, usage: Usage | None, endpoint: Endpoint, exchange: Exchange, trace: Trace) -> None:
        """Note where a response was made, and for whom, and what of it is not charged yet."""
        assert answer.response_id is not None
        debt = None
        if answer.error is not None and not answer.is_client_stuck:
            debt = Debt(trace.model, 0)  # what broke costs nothing, but its engine may have it whole
        elif usage is None or usage.output_tokens is None:
            if exchange.call.is_background:
                trace.advance_tokens = max(0, trace.reserved_output_tokens - trace.counted_tokens)
            debt = Debt(trace.model, trace.counted_tokens, trace.advance_tokens, today())
        self._homes.learn(answer.response_id, endpoint, exchange.tenant.name, debt)

    def settle(self, response_id: str, exchange: Exchange, usage: Usage | None, trace: Trace) -> None:
        """Charge the output of a response that was made in the background, to whoever fetches it first.

        To read a response computes nothing; its prompt was charged when it was asked for.
        """
        if usage is None or usage.output_tokens is None:
            return
        debt = self._homes.take_debt(response_id, exchange.tenant.name)
        if debt is not None:
            left = max(0, usage.output_tokens - debt.charged_tokens)
            trace.model, trace.usage = debt.model, Usage(0, left, 0)
            trace.advance_tokens = -debt.advance_tokens if debt.day == today() else -min(left, debt.advance_tokens)

    async def holder_of(self, response_id: str, exchange: Exchange) -> Member | None:
        """Give the engine that holds a response of this tenant; None where none does, or nobody may say."""
        endpoint = self._homes.find(response_id, exchange.tenant.name)
        if endpoint is not None:
            return self._fleet.member_of(endpoint)
        if not self._tenants.is_open or not SANE_ID.fullmatch(response_id):
            return None
        ready = [member for member in self._fleet.members() if member.endpoint.health.is_ready(self._clock())]
        answers = await asyncio.gather(*(self._is_held_by(member, response_id, exchange) for member in ready))
        for member, is_held in zip(ready, answers, strict=True):
            if is_held:
                self._homes.learn(response_id, member.endpoint, exchange.tenant.name)
                return member
        return None

    async def _is_held_by(self, member: Member, response_id: str, exchange: Exchange) -> bool:
        path = f"/v1/responses/{response_id}"
        question = Exchange(STORED_ROUTE, "GET", path, b"", b"", Call(""), exchange.tenant, exchange.inference)
        with self._fleet.lease_on(member, question.inference) as lease:
            answer = Answer(Shape.RESPONSES, hides_usage=False, on_first_token=lease.first_token)
            with closing(answer):
                await ask(answer, self._upstream, lease, question, ASK_WITHIN_S)
            return answer.is_good


def today() -> int:
    """Give the day, since 1970, by UTC."""
    return int(time.time() // DAY_S)
