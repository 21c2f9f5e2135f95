"""Only what is wanted is read, and whatever else stands on a page does no harm."""

import math

from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.engines import vllm
from gateway.engines.exposition import Exposition, Sample, read_metrics, read_samples, start_time, wanted
from tests.gateway.engines.garbage import UNTIMED
from tests.gateway.engines.pages import capture, page, pages

A = wanted("a")


def test_reads_labels_in_any_order_and_with_any_blanks() -> None:
    body = (
        b'a{x="1",y="2"} 3\n'
        b'a{y="2",x="1"} 4.0\n'
        b'a { y = "2" , x = "1" , } 5\n'
        b'a{\ty="2",x="1",}\t6 1795966304000\n'
        b"a{} 7\n"
        b"a 8\r\n"
        b'a{x="1"} 9 # {trace_id="q"} 0.5'
    )
    both = {"x": "1", "y": "2"}
    assert read_samples(body, A)["a"] == [
        *(Sample(both, 3.0), Sample(both, 4.0), Sample(both, 5.0), Sample(both, 6.0)),
        *(Sample({}, 7.0), Sample({}, 8.0), Sample({"x": "1"}, 9.0)),
    ]


def test_takes_escapes_for_what_they_stand_for() -> None:
    body = rb'a{path="C:\\DIR\\",say="\"}{,=\"",lines="one\ntwo",odd="\q"} 1'
    assert read_samples(body, A) == {
        "a": [Sample({"path": "C:\\DIR\\", "say": '"}{,="', "lines": "one\ntwo", "odd": "q"}, 1.0)]
    }


def test_reads_every_spelling_of_a_number() -> None:
    body = b"a 1\na 1.5e+09\na -2E-3\na +Inf\na -Inf\na .5\na NaN"
    values = [sample.value for sample in read_samples(body, A)["a"]]
    assert values[:-1] == [1.0, 1.5e9, -0.002, math.inf, -math.inf, 0.5]
    assert math.isnan(values[-1])


def test_a_name_matches_whole_and_at_the_beginning_of_a_line() -> None:
    body = (
        b"# HELP a_total all of a\n# TYPE a_total counter\n"
        b"a_total 1\na_total_created 1.79e+09\na_total_sum 2\nb_a_total 3\n a_total 4\na_totals 5\n"
        b'b{x="\\na_total 6"} 7'
    )
    assert read_samples(body, wanted("a_total", "a")) == {"a_total": [Sample({}, 1.0)]}


def test_what_is_not_in_the_format_is_skipped() -> None:
    lines = (
        *(b"a", b"a ", b"a{", b"a{}", b"a{} ", b'a{x="1" 2', b'a{x="1} 2', b"a{x=1} 2", b'a{="1"} 2'),
        *(b'a{x="1"', b"a one", b"a 1_000", b"a 0x10", b"a\x00 1", b'a{x="\\"} 1', b"a}{ 1", b'a{x"1"} 2'),
    )
    for line in lines:
        assert read_samples(line + b"\na 1\n", A) == {"a": [Sample({}, 1.0)]}, line
    assert read_samples(b'a{x="\xff"} 1', A) == {"a": [Sample({"x": "\ufffd"}, 1.0)]}


def test_reads_of_a_real_page_what_a_full_parser_reads() -> None:
    body = capture("vllm_metrics.txt")
    full: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            full.setdefault(sample.name, []).append(Sample(sample.labels, sample.value))
    assert len(full) > 100
    assert read_samples(body, wanted(*full)) == full
    assert sorted(read_samples(body, vllm.METRICS)) == [
        "vllm:cache_config_info",
        "vllm:engine_sleep_state",
        "vllm:kv_cache_usage_perc",
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:prefix_cache_hits_total",
        "vllm:prefix_cache_queries_total",
    ]


@UNTIMED
@given(
    st.dictionaries(
        st.tuples(st.text(max_size=8), st.text(max_size=8)), st.floats(allow_nan=False), min_size=1, max_size=4
    )
)
def test_reads_back_what_the_official_client_writes(series: dict[tuple[str, str], float]) -> None:
    registry = CollectorRegistry()
    gauge = Gauge("a", "Any.", ("x", "y"), registry=registry)
    for labels, value in series.items():
        gauge.labels(*labels).set(value)
    found = read_samples(generate_latest(registry), A)["a"]
    assert {(sample.labels["x"], sample.labels["y"]): sample.value for sample in found} == series


@UNTIMED
@given(st.lists(st.sampled_from([b"a", b"{", b"}", b'"', b"x", b"=", b"\\", b",", b" ", b"\n", b"1", b"\xff"])))
@example([b"a{", b'x="' * 2_000])
@example([b"a{", b'x="\\' * 2_000])
@example([b"a{", b'x="1",' * 2_000])
@example([b"a ", b"1" * 10_000])
def test_never_raises_and_reads_the_line_after(parts: list[bytes]) -> None:
    found = read_samples(b"".join(parts) + b"\na 42\n", A)
    assert found["a"][-1] == Sample({}, 42.0)


@UNTIMED
@given(st.binary())
def test_never_raises_on_bytes(body: bytes) -> None:
    read_samples(body, wanted("a", "", "\ud7ff", "0"))


def test_falls_back_on_the_older_name_and_never_on_zero() -> None:
    told = Exposition(read_samples(b"new NaN\nold 1\nold 2\nnone -1\n", wanted("new", "old", "none")))
    assert told.total("new", "old") == 3.0
    assert told.total("none") is None
    assert told.total("absent") is None
    assert told.mean("absent", "old") == 1.0  # shares end at 1
    assert repr(told) == "<Exposition new: 1, old: 2, none: 1>"


def test_finds_the_metrics_page_by_what_it_says() -> None:
    asked = pages(
        page("/metrics", "a 1\n", status=500),
        page("/other", "b 1\n"),
        page("http://10.0.0.1:8002/metrics", "a 2\n"),
        page("/again", "a 3\n"),
    )
    assert repr(read_metrics(asked, wanted("a", "c"))) == "<Exposition a: 1>"
    assert read_metrics(asked, A).samples("a") == [Sample({}, 2.0)]
    assert not read_metrics(asked, wanted("c"))
    assert start_time(asked) is None
