"""Which kind of engine answers at an address.

Four things give an engine away, in this order: the prefix of its metrics, the owner of its models, its Server
header, the fields of its /info. The prefixes come first because an engine behind Triton brings its own
metrics along, under Triton's. /version is not asked: vLLM and TensorRT-LLM answer it alike, and a wrong guess
would send fields to an engine that refuses what it does not know.
"""

from collections.abc import Mapping

from gateway.engines import figures
from gateway.engines.adapter import Kind, Page

DETECT_PATHS = ("/v1/models", "/info", "/metrics")
"""What to ask, in this order; stop when `detect` knows: on TensorRT-LLM the last page drains a queue."""

PREFIXES = (
    (b"nv_inference_", Kind.TRITON),
    (b"nv_trt_llm_", Kind.TRITON),
    (b"vllm:", Kind.VLLM),
    (b"sglang:", Kind.SGLANG),
    (b"trtllm_", Kind.TRTLLM),
    (b"llamacpp:", Kind.LLAMACPP),
    (b"tgi_", Kind.TGI),
)

OWNERS = {
    "vllm": Kind.VLLM,
    "sglang": Kind.SGLANG,
    "tensorrt_llm": Kind.TRTLLM,
    "Triton Inference Server": Kind.TRITON,
    "llamacpp": Kind.LLAMACPP,
}

TGI_INFO = {"model_id", "max_total_tokens", "router"}  # its sister for embeddings has no total
TRTLLM_ITERATION = {"numActiveRequests", "iterLatencyMS"}


def detect(pages: Mapping[str, Page]) -> Kind | None:
    """Tell the kind from whatever pages an engine answered; None if nothing gives it away."""
    well = [page for page in pages.values() if page.status == 200]
    return _by_metrics(well) or _by_json(well) or _by_server(pages)


def _by_metrics(pages: list[Page]) -> Kind | None:
    for prefix, kind in PREFIXES:
        if any(page.body.startswith(prefix) or b"\n" + prefix in page.body for page in pages):
            return kind
    return None


def _by_json(pages: list[Page]) -> Kind | None:
    for page in pages:
        answer = page.parse_json()
        for model in figures.entries(figures.fields(answer).get("data")):
            owner = figures.text(figures.fields(model).get("owned_by"))
            if owner in OWNERS:
                return OWNERS[owner]
        if figures.fields(answer).keys() >= TGI_INFO:
            return Kind.TGI
        if any(figures.fields(entry).keys() >= TRTLLM_ITERATION for entry in figures.entries(answer)):
            return Kind.TRTLLM
    return None


def _by_server(pages: Mapping[str, Page]) -> Kind | None:
    """Look at the header that llama.cpp alone sets, on errors and while loading too."""
    if any(page.headers.get("server", "").startswith("llama.cpp") for page in pages.values()):
        return Kind.LLAMACPP
    return None
