"""Doors: what may happen to a request before an engine gets it, by the rule that `--admission` names.

    none             it is sent on at once
    max_concurrency  refused while so many for each engine are under way
    wait_bound       refused where the engine that the policy chose is predicted to begin later than so many seconds
    flow             the gateway's own queue (`policies/admission.py`); what it may wait can be given

The first three hold no queue: whatever waits, waits in the engines.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum

from policies.endpoint import Endpoint
from policies.policy import Choice
from policies.tickets import CLASSES, ServiceClass


class Admission(StrEnum):
    """Rules, as the command line names them."""

    NONE = "none"
    MAX_CONCURRENCY = "max_concurrency"
    WAIT_BOUND = "wait_bound"
    FLOW = "flow"


LIMITS = {Admission.MAX_CONCURRENCY: 160.0, Admission.WAIT_BOUND: 0.5}
"""Requests for each engine: of 110, 140, 160 and 180 the best under `overload`, on a seed that is not reported.
Seconds: as interactive requests may wait in a crowd."""


def gate(admission: Admission, limit: float | None) -> Callable[[Choice, Sequence[Endpoint]], bool]:
    """Give the rule that says whether a request may be sent where the policy chose."""
    most = LIMITS.get(admission, 0.0) if limit is None else limit
    if admission is Admission.MAX_CONCURRENCY:
        return lambda choice, endpoints: sum(each.outstanding.requests for each in endpoints) < most * len(endpoints)
    if admission is Admission.WAIT_BOUND:
        return lambda choice, endpoints: choice.wait_s <= most
    return lambda choice, endpoints: True


def classes(limit: float | None) -> tuple[ServiceClass, ...]:
    """Give the classes of the gateway's queue; `limit` is what those of the first may wait in a crowd."""
    first, *others = CLASSES
    return CLASSES if limit is None else (replace(first, crowded_wait_s=limit), *others)
