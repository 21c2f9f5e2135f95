"""The seam to the engines: all that differs between vLLM, SGLang, TensorRT-LLM, Triton, llama.cpp and TGI.

An adapter is pure: it names the pages to poll and reads what they answered. `gateway/probe.py` does the
asking, `gateway/proxy.py` and `gateway/relay.py` ask it about answers. One instance a kind, no state; none
raises, whatever the pages hold.

Pages are handed over by the path that was asked. Metrics pages are known by their content and not by their
path, so one that was read elsewhere (an endpoint's `metrics_url`: another port, a sidecar) is handed over
among the others.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import orjson

from gateway.config import Kind as Kind
from policies.endpoint import EngineReport


@dataclass(frozen=True, slots=True)
class Page:
    """A page that an engine answered: what was asked, the status, the body, headers with lower-case names."""

    path: str
    status: int
    body: bytes
    headers: Mapping[str, str]

    def parse_json(self) -> object:
        """Parse the body; None where the status is not 200 or the body is no JSON."""
        if self.status != 200:
            return None
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return None


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that an engine lists: LoRA adapters are models with a `parent`."""

    id: str
    max_context_tokens: int | None = None
    """Prompt plus output of one request; None where the engine does not say."""
    parent: str | None = None
    root: str | None = None
    """Where its weights come from: names with the same root are one model."""


class Adapter(Protocol):
    """What the gateway asks about one engine kind."""

    kind: Kind
    health_path: str
    """Polled each health interval; 200 is well."""
    state_paths: tuple[str, ...]
    """Pages that tell load and cache, polled each state interval; any may be missing (404, 501)."""
    model_paths: tuple[str, ...]
    """Pages that list models and limits, read when the endpoint becomes ready."""
    min_state_interval_s: float
    """Its state pages are not to be read more often: some engines pay for it, or their requests do."""
    takes_unknown_fields: bool
    """False where the engine refuses a body with fields it does not know."""
    salted_paths: frozenset[str]
    """Paths whose bodies may name a `cache_salt`, by which it keeps its cache apart."""
    cuts_output: bool
    """Whether it ends an answer at the context's end, where others refuse a request that may come to more."""

    def read_state(self, pages: Mapping[str, Page]) -> EngineReport:
        """Read load and cache figures; what no page tells stays None, and `at` is left to the caller."""
        ...

    def read_models(self, pages: Mapping[str, Page]) -> tuple[ServedModel, ...]:
        """Read the served models and their context limits."""
        ...

    def incarnation(self, pages: Mapping[str, Page]) -> str | None:
        """Name this run of the engine process, from state and model pages alike; None where no page tells.

        Two different names are two runs. None says nothing: an engine may be asked for fewer pages the next
        time.
        """
        ...
