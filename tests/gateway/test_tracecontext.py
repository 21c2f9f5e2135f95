"""W3C trace context: what is valid to the letter is taken, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from gateway.tracecontext import MAX_STATE_CHARS, MAX_STATE_MEMBERS, Parent, lines_of, parent_of

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
IDS = (int(TRACE, 16), int(SPAN, 16))


def read(*parents: str, states: tuple[str, ...] = ()) -> Parent | None:
    return parent_of(
        CIMultiDict([*(("Traceparent", each) for each in parents), *(("Tracestate", each) for each in states)])
    )


@pytest.mark.parametrize(
    ("flags", "kept", "is_sampled"),
    [("00", 0, False), ("01", 1, True), ("03", 3, True), ("ff", 3, True), ("fc", 0, False)],
)
def test_a_valid_parent_is_taken_with_the_flags_that_are_known(flags: str, kept: int, is_sampled: bool) -> None:
    parent = read(f"00-{TRACE}-{SPAN}-{flags}")
    assert parent == Parent(*IDS, kept)
    assert parent.is_sampled is is_sampled


@pytest.mark.parametrize("told", [f"cc-{TRACE}-{SPAN}-01", f"cc-{TRACE}-{SPAN}-01-what-the-future-is-like"])
def test_a_later_version_is_read_as_far_as_it_is_known(told: str) -> None:
    assert read(told) == Parent(*IDS, 1)


@pytest.mark.parametrize(
    "told",
    [
        "",
        "00",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01-",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01\n",
        f" 00-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-0g",
        f"ff-{TRACE}-{SPAN}-01",
        f"cc-{TRACE}-{SPAN}-01.more",
        f"cc-{TRACE}-{SPAN}-01-\x00",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{'٠' * 32}-{SPAN}-01",
        "00-" + "a" * 100_000,
    ],
)
def test_what_is_not_valid_to_the_letter_is_none(told: str) -> None:
    assert read(told, states=("a=b",)) is None


def test_two_parents_are_none() -> None:
    assert read(f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01") is None
    assert read() is None


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        (("a=b",), "a=b"),
        (("a=b , c@d=e f",), "a=b,c@d=e f"),
        (("a=b", "c=d"), "a=b,c=d"),
        (("a=b,,c=d,",), "a=b,c=d"),
        (("0=1", "z_-*/9=!"), "0=1,z_-*/9=!"),
        ((",".join(f"k{at}=v" for at in range(MAX_STATE_MEMBERS)),), ",".join(f"k{at}=v" for at in range(32))),
    ],
)
def test_a_state_is_passed_on_member_by_member(told: tuple[str, ...], kept: str) -> None:
    parent = read(f"00-{TRACE}-{SPAN}-01", states=told)
    assert parent == Parent(*IDS, 1, kept)


@pytest.mark.parametrize(
    "told",
    [
        "a",
        "A=b",
        "=b",
        "a=",
        "a=b=c",
        "a=b,a=c",
        "a=\x7f",
        "a=b\r\nx-evil: 1",
        "a=ä",
        "a" * 242 + "=b",
        "a=" + "b" * 257,
        "a=" + "b" * MAX_STATE_CHARS,
        ",".join(f"k{at}=v" for at in range(MAX_STATE_MEMBERS + 1)),
    ],
)
def test_a_state_that_is_not_valid_is_dropped_and_the_parent_stays(told: str) -> None:
    assert read(f"00-{TRACE}-{SPAN}-01", states=(told,)) == Parent(*IDS, 1, "")


@given(st.text(max_size=80), st.text(max_size=600))
def test_whatever_comes_what_goes_out_is_two_lines_at_most(parent: str, state: str) -> None:
    found = read(parent, states=(state,)) or read(f"00-{TRACE}-{SPAN}-01", states=(state,))
    assert found is not None
    lines = lines_of(found.trace_id, found.span_id, found.flags, found.state)
    assert lines.count(b"\r\n") == lines.count(b"\n") == 1 + bool(found.state)
    assert lines.isascii()


def test_what_is_written_can_be_read() -> None:
    written = lines_of(*IDS, 1, "a=b").decode().split("\r\n")
    assert written == [f"traceparent: 00-{TRACE}-{SPAN}-01", "tracestate: a=b", ""]
