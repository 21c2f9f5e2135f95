"""The seam to the engines: all that differs between vLLM, SGLang, TensorRT-LLM, llama.cpp and TGI.

An adapter is pure: it names the pages to poll and reads what they answered. `gateway/probe.py` does the asking,
`gateway/proxy.py` and `gateway/relay.py` ask it about answers. One instance a kind, no state.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from policies.endpoint import EngineReport


class Kind(Enum):
    """Engine families, as the configuration names them."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TRTLLM = "trtllm"
    TRITON = "triton"
    LLAMACPP = "llamacpp"
    TGI = "tgi"


@dataclass(frozen=True, slots=True)
class Page:
    """A page that an engine answered: what was asked, the status, the body, headers with lower-case names."""

    path: str
    status: int
    body: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that an engine lists: LoRA adapters are models with a `parent`."""

    id: str
    max_context_tokens: int | None = None
    parent: str | None = None


class Adapter(Protocol):
    """What the gateway asks about one engine kind."""

    kind: Kind
    health_path: str
    """Polled each health interval; 200 is well."""
    state_paths: tuple[str, ...]
    """Pages that tell load and cache, polled each state interval; any may be missing (404, 501) on a given engine."""
    model_paths: tuple[str, ...]
    """Pages that list models and limits, read when the endpoint becomes ready."""
    takes_unknown_fields: bool
    """False where the engine refuses a body with fields it does not know."""

    def read_state(self, pages: Mapping[str, Page]) -> EngineReport:
        """Read load and cache figures; what the pages do not tell stays None."""
        ...

    def read_models(self, pages: Mapping[str, Page]) -> tuple[ServedModel, ...]:
        """Read the served models and their context limits."""
        ...

    def incarnation(self, pages: Mapping[str, Page]) -> str | None:
        """Name this run of the engine process (its start time), None where no page tells."""
        ...
