"""What varies in a line is found by its look."""

from itertools import pairwise

import pytest

from gateway.masks import MAX_CHARS, MAX_MARKS, is_member, mask, spans_in, unordered
from policies.shape import KINDS


def masked(line: str) -> str:
    return mask(line, spans_in(line))


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("Today is Monday, March 2, 2026.", "Today is <d>."),
        ("Date: 2026-03-02", "Date: <d>"),
        ("As of 2 March 2026, prices hold.", "As of <d>, prices hold."),
        ("On 02.03.2026 and 3/2/26", "On <d> and <d>"),
        ("Current time: 2026-03-02T08:15:30.123Z", "Current time: <t>"),
        ("Now: 2026-03-02 08:15:30 UTC!", "Now: <t>!"),
        ("It is 8:15 PM now.", "It is <t> now."),
        ("ts=1772438400", "ts=<t>"),
        ("Session 6f1c2a5e-9d2b-4c8e-a1f0-0123456789ab ends", "Session <u> ends"),
        ("request 4100 of 12,500.5", "request <n> of <n>"),
        ("id sess_8fk2Lq09x", "id <i>"),
        ("trace 4bf92f3577b34da6", "trace <i>"),
        ("Write to jane.doe@example.com please", "Write to <e> please"),
        ("User: Maria Gonzalez", "<p>"),
        ("You are speaking with Maria Gonzalez, a customer.", "You are speaking with <p>, a customer."),
        ("user_name: jdoe", "user_name: <p>"),
        ('"name": "Chen Wei"', '"name": "<p>"'),
        ("The user's name is Aylin.", "The user's name is <p>"),
        ("You are the assistant of Nordwind.", "You are the assistant of <p>"),
        ("Help the user to understand the bill.", "Help the user to understand the bill."),
        ("  two\t spaces  ", "two spaces"),
        ("", ""),
    ],
)
def test_a_look_is_known(line: str, shown: str) -> None:
    if shown == "<p>":
        assert masked(line).endswith("<p>")
    else:
        assert masked(line) == shown


@pytest.mark.parametrize("name", ["Maria Gonzalez", "John O'Neil", "Björk"])
def test_who_it_is_makes_no_difference(name: str) -> None:
    assert masked(f"You are helping {name} today.") == masked("You are helping Chen Wei today.")


def test_every_span_has_a_letter_of_a_mark_and_they_come_in_order() -> None:
    line = "User: Jo 7:30, 2026-01-01, a@b.cd, k3y-4567, 5 " * 10
    spans = spans_in(line)
    assert len(spans) == MAX_MARKS
    assert {span.kind for span in spans} <= set(KINDS)
    assert all(a.end <= b.start for a, b in pairwise(spans))


def test_members_of_json_are_the_same_in_any_order() -> None:
    one, other = '{"a": 1, "b": [2, 3]}', '{"b": [2, 3], "a": 1}'
    assert is_member(one)
    assert not is_member("a plain line")
    assert unordered(one) == unordered(other) != unordered('{"a": 2, "b": [2, 3]}')
    assert unordered('"a": 1,') == unordered('"a": 1')


def test_of_a_long_line_the_head_is_looked_at() -> None:
    line = "user name is a@b.cd 1:2 " * 1000
    assert spans_in(line) == spans_in(line[:MAX_CHARS])
