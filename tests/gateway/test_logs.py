"""Log lines: of an error its kind and its way, and none of its words."""

import asyncio
import io
import logging
from collections.abc import Iterator

import pytest

from gateway.logs import Discreet, log_loop_fault

MARK = "the words of a prompt"


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What the gateway's own format makes of what is logged."""
    told = io.StringIO()
    handler = logging.StreamHandler(told)
    handler.setFormatter(Discreet("%(levelname)s %(message)s"))
    logging.getLogger().addHandler(handler)
    yield told
    logging.getLogger().removeHandler(handler)


def choke(on: str) -> None:
    raise ValueError(f"cannot take {on!r}")


def test_an_error_is_told_by_kind_and_place(lines: io.StringIO) -> None:
    try:
        choke(MARK)
    except ValueError:
        logging.getLogger("x").exception("it failed")
    told = lines.getvalue()
    assert told.startswith("ERROR it failed\n")
    assert "in choke" in told
    assert told.endswith("ValueError\n")
    assert MARK not in told


def test_what_led_to_an_error_is_told_as_well_and_first(lines: io.StringIO) -> None:
    try:
        try:
            choke(MARK)
        except ValueError as error:
            raise KeyError(MARK) from error
    except KeyError:
        logging.getLogger("x").exception("it failed")
    told = lines.getvalue()
    assert told.index("ValueError\nwhich led to\n") < told.index("KeyError")
    assert MARK not in told


def test_where_there_is_no_error_nothing_is_told(lines: io.StringIO) -> None:
    logging.getLogger("x").error("it failed", exc_info=True)
    assert lines.getvalue() == "ERROR it failed\n"


async def test_what_fails_unnoticed_is_logged_without_its_arguments(lines: io.StringIO) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(log_loop_fault)
    loop.call_soon(choke, MARK)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    loop.call_exception_handler({"message": "odd"})
    loop.call_exception_handler({})
    told = lines.getvalue()
    assert "in choke" in told
    assert "ERROR odd\n" in told
    assert "ERROR a callback failed\n" in told
    assert MARK not in told
