"""Questions: asks an engine of a model something on the side: how it would tokenize a prompt."""

import logging
from collections.abc import Callable
from typing import Any

import aiohttp
import orjson

from gateway.config import Kind
from gateway.fleet import Fleet
from gateway.members import Member

log = logging.getLogger(__name__)

PATIENCE_S = 2.0  # a prompt waits for it; an estimate now is better than a count then
SILENT_S = 5.0  # after it did not answer nobody is asked about that model for so long: each prompt would wait for it
MAX_ANSWER_BYTES = 4 << 20


class Questions:
    """Asks whichever engine of a model has the least to do."""

    def __init__(self, fleet: Fleet, session: aiohttp.ClientSession, clock: Callable[[], float]) -> None:
        self._fleet = fleet
        self._session = session
        self._clock = clock
        self._silent_until: dict[str, float] = {}

    def kind_of(self, model: str) -> Kind | None:
        """Tell what kind of engine would be asked; None where none is up."""
        member = self._member(model)
        return None if member is None else member.kind

    async def ask(self, model: str, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """Post a body to an engine; None for whatever goes wrong."""
        member = self._member(model)
        if member is None or self._clock() < self._silent_until.get(model, 0.0):
            return None
        headers = {"content-type": "application/json"}
        if member.config.api_key:
            headers["authorization"] = f"Bearer {member.config.api_key}"
        try:
            async with self._session.post(
                member.endpoint.url + path,
                data=orjson.dumps(body),
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=PATIENCE_S),
                allow_redirects=False,
            ) as response:
                if response.status != 200:
                    return None
                answer = b""
                while len(answer) < MAX_ANSWER_BYTES and (more := await response.content.read(MAX_ANSWER_BYTES)):
                    answer += more
                found = orjson.loads(answer)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, TypeError) as error:
            if self._clock() >= self._silent_until.get(model, 0.0):
                self._silent_until[model] = self._clock() + SILENT_S
                log.warning("%s%s did not answer: %s", member.endpoint.name, path, type(error).__name__)
            return None
        return found if isinstance(found, dict) else None

    def _member(self, model: str) -> Member | None:
        now = self._clock()
        up = [
            member
            for member in self._fleet.members()
            if model in member.endpoint.models and member.endpoint.health.is_ready(now)
        ]
        return min(up, key=lambda member: member.endpoint.outstanding.requests, default=None)
