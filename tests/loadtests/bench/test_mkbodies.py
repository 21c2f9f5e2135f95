"""The bench's request bodies."""

import json
from pathlib import Path

from loadtests.bench.mkbodies import COUNTER, SIZES, body, main


def test_a_body_has_its_size_and_one_counter() -> None:
    for size in SIZES.values():
        text = body(size)
        assert size <= len(text.encode()) <= size * 1.01  # quotation marks are escaped after they are counted
        assert text.count(COUNTER) == 1
        assert json.loads(text)["stream"] is False


def test_a_stream_asks_for_its_chunks_and_for_usage() -> None:
    request = json.loads(body(1024, chunks=64))
    assert (request["stream"], request["max_tokens"]) == (True, 64)
    assert request["stream_options"] == {"include_usage": True}


def test_bodies_are_the_same_each_time_and_warm_ones_have_no_counter(tmp_path: Path) -> None:
    main(tmp_path)
    assert (tmp_path / "8k.json").read_text() == body(SIZES["8k"])
    assert COUNTER not in (tmp_path / "8k_warm.json").read_text()
    assert len(list(tmp_path.iterdir())) == 32
