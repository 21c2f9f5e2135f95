"""The list of models, as far as it is one."""

import pytest

from gateway.engines.adapter import ServedModel
from gateway.engines.models import read_list
from tests.gateway.engines.pages import page, pages


def test_reads_entries_that_have_an_id() -> None:
    entries = b'{"id":"a/b","max_model_len":10},{"id":""},{"id":7},7,null,{"id":"c","max_model_len":"x","parent":""}'
    body = b'{"object":"list","data":[%b]}' % entries
    assert read_list(pages(page("/v1/models", body))) == (ServedModel("a/b", 10), ServedModel("c"))
    assert read_list(pages(page("/v1/models", body)), 99) == (ServedModel("a/b", 10), ServedModel("c", 99))


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"data":7}', b'{"error":{"message":"no"}}'])
def test_anything_else_lists_nothing(body: bytes) -> None:
    assert read_list(pages(page("/v1/models", body))) == ()


def test_an_answer_with_an_error_lists_nothing() -> None:
    assert read_list(pages(page("/v1/models", b'{"data":[{"id":"a"}]}', 401))) == read_list({}) == ()
