"""nearest: who of those that wait gets the room of an endpoint; see `admission` for why it is not simply the first."""

from collections.abc import Callable

from policies.endpoint import Endpoint
from policies.lines import Line
from policies.request import InferenceRequest
from policies.tickets import Ticket

WINDOW = 64
LOOKED_AT = 512  # of a line that is full of others' models, or of prompts that do not fit
ALPHA_S = 0.03  # of prefill: so much more may one cost that has waited for as long as its class may in a crowd
DEBT_S = 0.05  # of prefill: so much less may one cost whose tenant has had a request more than others, or several
OVERDUE = 0.75  # who has waited so much of what it may, without debt, goes first; who is back from a failed try, too
FIRST_S = 1e6  # of prefill: whatever it costs


def nearest(
    line: Line,
    endpoint: Endpoint,
    now: float,
    held_tokens: Callable[[InferenceRequest], int],
    may_take: Callable[[Ticket], bool],
    fits: Callable[[InferenceRequest, int], bool],
) -> Ticket | None:
    """Of the next few in fair order, find who costs least there, with its tenant's debt and its wait.

    Args:
        held_tokens: Prompt tokens that the endpoint probably holds.
        may_take: Whether it can serve a request, and may.
        fits: Whether it has memory for a request of whose prompt so many tokens are not there.
    """
    best, best_s, seen = None, 0.0, 0
    debts: dict[str, float] = {}
    p1, alpha = endpoint.work.p1, ALPHA_S / line.least_bound_s
    for looked_at, ticket in enumerate(line.order, 1):
        request = ticket.request
        assert ticket.place is not None
        debt = debts.get(request.tenant)
        if debt is None:  # of its first: they come in this order
            debt = debts[request.tenant] = line.order.debt(ticket.place)
        if may_take(ticket):
            uncached = request.prompt_tokens - held_tokens(request)
            waited_s = now - ticket.arrived_at
            score_s = p1 * uncached + DEBT_S * min(max(debt, -1.0), 1.0) - alpha * waited_s
            if ticket.barred.tried or (debt <= 0 and waited_s > OVERDUE * line.rules.max_queue_wait_s):
                score_s -= FIRST_S
            if best is not None and score_s >= best_s:
                seen += 1
            elif fits(request, uncached):
                best, best_s = ticket, score_s
                seen += 1
        if seen == WINDOW or looked_at == LOOKED_AT:
            break
    return best
