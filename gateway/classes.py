"""Classes of service: which one a request belongs to.

Asked for by a header, else by `service_tier`; the first where neither says anything that is known. A tenant's own class
is the best it may have: it can ask for less, and never for more.
"""

from collections.abc import Mapping

from gateway.sections import Admission
from policies.flow import Flow
from policies.tickets import ServiceClass


class Classes:
    """The classes of the configuration."""

    def __init__(self, config: Admission) -> None:
        self.rules = tuple(
            ServiceClass(
                each.name,
                max_queued=each.max_queued,
                max_queue_wait_s=each.max_queue_wait_s,
                crowded_wait_s=float("inf") if each.crowded_wait_s is None else each.crowded_wait_s,
                ceiling=each.ceiling,
                floor=each.floor,
            )
            for each in config.classes
        )
        self.flow = Flow(config.tpot_slo_s, config.max_inflight)
        self._header = config.class_header.lower()
        self._tiers = config.service_tiers
        self._ranks = {each.name: rank for rank, each in enumerate(config.classes)}
        self._names = [each.name for each in config.classes]

    def class_of(self, headers: Mapping[str, str], tier: object, best: str | None) -> str:
        """Give the class of a request.

        Args:
            headers: The client's.
            tier: `service_tier` of the body, whatever it is.
            best: The tenant's.
        """
        asked = self._ranks.get(headers.get(self._header, ""))
        if asked is None and isinstance(tier, str):
            asked = self._ranks.get(self._tiers.get(tier, ""))
        return self._names[max(asked or 0, self._ranks.get(best or "", 0))]
