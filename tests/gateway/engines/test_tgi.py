"""TGI: token budgets in place of a cache."""

from gateway.engines.adapter import ServedModel
from gateway.engines.tgi import Tgi
from policies.endpoint import EngineReport
from tests.gateway.engines.pages import capture, page, pages

INFO = (
    b'{"model_id":"meta/llama","model_sha":null,"model_pipeline_tag":"text-generation","max_concurrent_requests":128,'
    b'"max_best_of":2,"max_stop_sequences":4,"max_input_tokens":4095,"max_total_tokens":4096,"validation_workers":2,'
    b'"max_client_batch_size":4,"router":"text-generation-router","version":"3.3.6"}'
)


def test_reads_the_page() -> None:
    assert Tgi().read_state(pages(page("/metrics", capture("tgi_metrics.txt")))) == EngineReport(
        running=17, waiting=3, kv_usage=51234 / 131072, kv_capacity_tokens=131072
    )


def test_missing_is_not_zero() -> None:
    assert Tgi().read_state({}) == Tgi().read_state(pages(page("/metrics", b""))) == EngineReport()
    told = Tgi().read_state(pages(page("/metrics", b"tgi_batch_current_max_tokens 5\ntgi_batch_max_total_tokens 0\n")))
    assert told == EngineReport(kv_capacity_tokens=0)


def test_reads_the_model_and_its_limit() -> None:
    assert Tgi().read_models(pages(page("/info", INFO))) == (ServedModel("meta/llama", 4096),)
    assert Tgi().read_models(pages(page("/info", b"{}"))) == Tgi().read_models({}) == ()
    assert Tgi().incarnation(pages(page("/info", INFO))) is None
