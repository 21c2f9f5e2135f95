"""What gives an engine away, and what does not."""

import pytest

from gateway.engines.adapter import Kind, Page
from gateway.engines.detect import DETECT_PATHS, detect
from tests.gateway.engines.pages import answer, capture, page, pages
from tests.gateway.engines.test_tgi import INFO

LISTED = {
    "vllm": Kind.VLLM,
    "sglang": Kind.SGLANG,
    "tensorrt_llm": Kind.TRTLLM,
    "Triton Inference Server": Kind.TRITON,
    "llamacpp": Kind.LLAMACPP,
    "meta/llama": None,
}
NOT_FOUND = b'{"detail":"Not Found"}'
HTML = b"<html><head><title>404 Not Found</title></head><body>nginx vllm: sglang:</body></html>"


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (page("/metrics", capture("vllm_metrics.txt")), Kind.VLLM),
        (answer("vllm_models.txt", "/v1/models"), Kind.VLLM),
        (page("/metrics", capture("sglang_metrics.txt")), Kind.SGLANG),
        (page("/prometheus/metrics", capture("trtllm_prometheus_metrics.txt")), Kind.TRTLLM),
        (page("/metrics", capture("trtllm_iteration_metrics.json")), Kind.TRTLLM),
        (page("/metrics", capture("triton_metrics.txt")), Kind.TRITON),
        (page("/metrics", b'vllm:num_requests_running 1\nnv_inference_request_success{model="m"} 3\n'), Kind.TRITON),
        (page("/metrics", capture("llama_metrics.txt")), Kind.LLAMACPP),
        (answer("llama_v1_models.txt", "/v1/models"), Kind.LLAMACPP),
        (answer("llama_metrics_disabled.txt", "/metrics"), Kind.LLAMACPP),
        (answer("llama_health_loading.txt", "/v1/models"), Kind.LLAMACPP),
        (answer("llama_unknownpath.txt", "/info"), Kind.LLAMACPP),
        (page("/metrics", capture("tgi_metrics.txt")), Kind.TGI),
        (page("/metrics", b"tgi_queue_size 0\n"), Kind.TGI),
        (page("/info", INFO), Kind.TGI),
    ],
)
def test_one_page_is_enough(found: Page, kind: Kind) -> None:
    assert detect(pages(found)) is kind
    others = (page(path, NOT_FOUND, 404) for path in DETECT_PATHS if path != found.path)
    assert detect(pages(*others, found)) is kind


@pytest.mark.parametrize(("owner", "kind"), LISTED.items())
def test_the_owner_of_the_models_tells(owner: str, kind: Kind | None) -> None:
    body = f'{{"object":"list","data":[7,{{"id":"m"}},{{"id":"m","owned_by":"{owner}"}}]}}'
    assert detect(pages(page("/v1/models", body))) is kind


def test_a_server_of_embeddings_is_not_tgi() -> None:
    info = b'{"model_id":"bge","max_concurrent_requests":512,"max_input_length":512,"max_batch_tokens":16384}'
    assert detect(pages(page("/info", info))) is None


@pytest.mark.parametrize("body", [b"", NOT_FOUND, HTML, b"null", b"[]", b'{"data":{}}', b'"vllm:"', b"\xff\xfe", b"{"])
@pytest.mark.parametrize("status", [200, 404, 500])
def test_what_anything_could_answer_tells_nothing(body: bytes, status: int) -> None:
    assert detect(pages(*(page(path, body, status) for path in DETECT_PATHS))) is None
    assert detect(pages(*(page(path, body, status, server=None) for path in DETECT_PATHS))) is None


def test_an_error_page_is_not_believed() -> None:
    assert detect(pages(page("/metrics", b"vllm:num_requests_running 1\n", 500))) is None
    assert detect({}) is None
