"""The prefix doctor of a gateway that runs: it looks at each finished request, counts what is wasted, and tells.

    request --shape_of--> record.prefix_shape, also in the access log
    record --note--> policies.doctor --what sure faults cost--> kvlane_prefix_wasted_tokens_total
                                     --findings--------------> GET /admin/doctor?tenant=…

Only requests that were sent to an engine count: what was refused was not computed. A request whose prompt was not
looked at (`doctor.per_second`) is counted all the same, and the next one of its tenant and model stands for it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

import orjson
from aiohttp import web

from gateway.errors import error_body
from gateway.metrics import Metrics
from gateway.routes import ENGINE_ROUTES
from gateway.sections import Doctor as DoctorConfig
from gateway.shapes import ShapeMaker
from policies.doctor import Doctor
from policies.findings import Finding
from policies.record import RequestRecord

GENERATING = frozenset(path for path, route in ENGINE_ROUTES.items() if route.generates)
"""Routes whose prompts are looked at."""


class PrefixDoctor:
    """Looks at the requests of one gateway.

    Args:
        config: Whether, how often, and with examples or not.
        secret: That hashes are keyed with; not itself, but what is made of it.
        metrics: Where the waste is counted.
        clock: Monotonic seconds.
    """

    def __init__(self, config: DoctorConfig, secret: bytes, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._metrics = metrics
        self._doctor = Doctor()
        maker = ShapeMaker(secret, config.per_second, clock, keeps_examples=config.examples) if config.enabled else None
        self._maker = maker
        self.shape_of = None if maker is None else maker.of
        """Makes the shape of a prompt; None: it is switched off."""

    def note(self, record: RequestRecord) -> None:
        """Take in a finished request."""
        if self._maker is not None and record.tries and record.route in GENERATING:
            for waste in self._doctor.note(record.tenant, record.model, record.arrived_at, record.prefix_shape):
                self._metrics.prefix_waste.add((record.tenant, waste.fault.value), waste.tokens)

    def routes(self) -> Iterable[web.AbstractRouteDef]:
        """Give the page."""
        return [web.get("/admin/doctor", self._page)]

    async def _page(self, request: web.Request) -> web.Response:
        unknown = request.query.keys() - {"tenant"}
        if unknown:
            message = f"there is no parameter {min(unknown)[:50]!r}: there is tenant"
            body = error_body(message, "invalid_request_error", None, "invalid_parameter")
            return web.Response(status=400, body=body, content_type="application/json")
        examples = {} if self._maker is None else self._maker.examples
        content = told(self._doctor, self._doctor.findings(request.query.get("tenant")), examples)
        return web.Response(
            body=orjson.dumps({"is_enabled": self._maker is not None, **content}), content_type="application/json"
        )


def told(doctor: Doctor, findings: Iterable[Finding], examples: Mapping[str, str]) -> dict[str, Any]:
    """Put into plain data what a doctor found; the feed of pages and of `kvlane doctor --json`."""
    return {
        "requests": doctor.requests,
        "looked_at": doctor.looked_at,
        "findings": [
            {
                **asdict(finding),
                "fault": finding.fault.value,
                "what": finding.what,
                "advice": finding.advice,
                "masked_text": examples.get(finding.frame),
            }
            for finding in findings
        ],
    }
