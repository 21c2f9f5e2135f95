"""A shape is read as it was written, and what is none is none."""

import pytest

from policies.findings import ADVICE, MARKS, WORDS, Fault, masked
from policies.shape import KINDS, MAX_CHARS, MAX_SEGMENTS, Mark, Segment, Shape, shape_of, written


def test_a_shape_is_read_as_it_was_written() -> None:
    mark = Mark("t", 14, 8, "hhhh")
    text = ";".join(
        ("1", "salt", f"s,{written(30, 'exact', 'frame', [mark])},{written(9, 'same', 'same', [])}", "t,5.a.b")
    )
    assert text == "1;salt;s,30.exact.frame.t14-8:hhhh,9.same;t,5.a.b"
    assert shape_of(text) == Shape(
        "salt",
        (
            Segment("s", 0, 30, "exact", "frame", (mark,)),
            Segment("s", 1, 9, "same", "same"),
            Segment("t", 0, 5, "a", "b"),
        ),
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "2;salt;s,1.a",
        "1;salt;x,1.a",
        "1;salt;s,one.a",
        "1;salt;s,-1.a",
        "1;salt;s,1234567890.a",
        "1;salt;s,1",
        "1;salt;s,1.a.b.t",
        "1;salt;s,1.a.b.:h",
        "1;salt;s,1.a.b.z1-2:h",
        "1;salt;s,1.a.b.t1:h",
        "1;salt;s" + ",1.a" * (MAX_SEGMENTS + 1),
        "1;salt;s," + "1" * MAX_CHARS,
    ],
)
def test_what_is_no_shape_is_none(text: str) -> None:
    assert shape_of(text) is None


def test_every_mark_has_a_fault() -> None:
    assert set(MARKS) == set(KINDS)


def test_every_fault_has_words_and_advice() -> None:
    assert set(WORDS) == set(ADVICE) == set(Fault)


def test_a_segment_is_drawn_with_what_varies_masked_and_no_text() -> None:
    marks = (Mark("d", 5, 10, "x"), Mark("n", 17, 2, "x"), Mark("d", 100, 10, "y"))
    segment = Segment("s", 0, 115, "e", "f", marks)
    assert masked(segment, Fault.DATE) == "·····<date>·· 85 bytes ··<date>·····"
    assert masked(segment, Fault.VARYING) == ""
