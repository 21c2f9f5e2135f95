"""Where prompts part, by hashes alone: a little language of segments, `exact/frame` or `exact/frame/marks`."""

from collections.abc import Iterable
from random import Random

import pytest

from policies.doctor import MAX_GROUPS, Doctor
from policies.findings import Fault, Finding
from policies.shape import Segment, shape_of
from policies.spots import MAX_SPOTS, MAX_VALUES, Group, Node

BODY = [f"400.body{n}" for n in range(5)]
"""Five lines of a hundred tokens each, the same in all prompts."""


def shape(*system: str, user: Iterable[str] = (), tools: str = "", salt: str = "s") -> str:
    parts = ["1", salt, ",".join(("s", *system))]
    if tools:
        parts.append(f"t,{tools}")
    if user:
        parts.append(",".join(("u", *user)))
    return ";".join(parts)


def seen(shapes: Iterable[str | None], doctor: Doctor | None = None) -> Doctor:
    doctor = doctor or Doctor()
    for at, text in enumerate(shapes):
        doctor.note("t", "m", 60.0 * at, text)
    return doctor


def told(doctor: Doctor) -> list[tuple[Fault, int, int]]:
    """Give the faults with breaks and wasted tokens."""
    return [(each.fault, each.breaks, each.wasted_tokens) for each in doctor.findings()]


def dated(at: int, kind: str = "d", name: str = "date") -> str:
    return f"20.{name}{at}.f{name}.{kind}5-10:v{at}"


def test_what_varies_by_a_mark_is_named_by_it() -> None:
    doctor = seen(shape(dated(at), *BODY, user=[f"40.q{at}"]) for at in range(30))
    assert told(doctor) == [
        (Fault.DATE, 29, (29 - 2) * 500)
    ]  # what was seen fewer than three times is not constant yet
    (finding,) = doctor.findings()
    assert (finding.requests, finding.variants, finding.line, finding.place) == (30, 30, 1, "system prompt")
    assert finding.what == "a date in line 1 of the system prompt"
    assert finding.wasted_tokens_per_day is None  # in less than an hour


def test_the_rate_is_of_the_time_that_was_seen() -> None:
    doctor = seen(shape(dated(at), *BODY) for at in range(121))
    (finding,) = doctor.findings()
    assert finding.wasted_tokens_per_day == finding.wasted_tokens * 12


def test_each_varying_place_is_blamed_for_what_follows_it() -> None:
    shapes = [shape(dated(at), *BODY[:2], dated(at, "u", "id"), *BODY[2:]) for at in range(30)]
    assert told(seen(shapes)) == [(Fault.UUID, 29, 27 * 300), (Fault.DATE, 29, 27 * 200)]


def test_the_nearest_of_the_texts_that_were_seen_says_what_differs() -> None:
    node = Node()
    for value, other in (("a", "x"), ("b", "y")):
        node.note(shaped(f"9.{value}{other}.f.d0-1:{value}+n3-1:{other}"), 9)
    assert node.fault_of(shaped("9.new.f.d0-1:a+n3-1:new")) is Fault.NUMBER
    assert node.fault_of(shaped("9.new.f.d0-1:new+n3-1:new")) is Fault.DATE
    assert node.fault_of(shaped("9.new.f.d0-1:a+n3-1:x")) is Fault.WHITE_SPACE


def shaped(text: str) -> Segment:
    read = shape_of(f"1;s;s,{text}")
    assert read is not None
    return read.segments[0]


def test_of_many_texts_the_rarest_is_forgotten() -> None:
    node = Node()
    for at in range(100):
        node.note(shaped("9.often.f"), 9)
        node.note(shaped(f"9.once{at}.f"), 9)
        node.end(at)
    assert (node.count, node.distinct, len(node.values), node.values["often"]) == (200, 101, MAX_VALUES, 100)
    assert len(node.tails) == MAX_VALUES


def test_two_spellings_of_one_text_are_one_too_many() -> None:
    bodies = (BODY, [f"401.other{n}.body{n}" for n in range(5)])
    doctor = seen(shape("40.top", *bodies[at % 2], user=[f"40.q{at}"]) for at in range(40))
    assert told(doctor) == [(Fault.WHITE_SPACE, 1, 501)]


def test_two_wordings_are_none_too_many() -> None:
    wordings = ("40.a", "40.b")
    assert told(seen(shape(wordings[at % 2], *BODY) for at in range(40))) == []
    assert told(seen(shape(("20.a.f.n0-1:a", "20.b.f.n0-1:b")[at % 2], *BODY) for at in range(40))) == []


def test_two_spellings_of_which_one_is_rare_are_no_matter() -> None:
    odd = [f"401.other{n}.body{n}" for n in range(5)]
    assert told(seen(shape("40.top", *(odd if at in (3, 4) else BODY)) for at in range(100))) == []


def test_tools_in_another_order_are_wasted_themselves() -> None:
    tools = [f"900.order{at}.tools.o0-900:{at}+k0-900:same" for at in range(30)]
    doctor = seen(shape("40.top", user=["40.q"], tools=each) for each in tools)
    assert [(fault, breaks) for fault, breaks, _ in told(doctor)] == [(Fault.TOOL_ORDER, 29)]
    assert told(doctor)[0][2] >= 29 * 225


@pytest.mark.parametrize(("marks", "fault"), [("", Fault.BLOCK_ORDER), (".k0-80:k", Fault.KEY_ORDER)])
def test_lines_in_another_order_are_found(marks: str, fault: Fault) -> None:
    chance = Random(1)
    lines = [f"80.l{n}.f{n}{marks}" for n in range(8)]
    shapes = [shape("40.top", *chance.sample(lines, 8), *BODY, user=[f"9.q{at}"]) for at in range(60)]
    doctor = seen(shapes)
    assert [found for found, _, _ in told(doctor)] == [fault]
    assert "Sort" in doctor.findings()[0].advice or "sorted keys" in doctor.findings()[0].advice


def test_what_grows_before_constant_text_is_found() -> None:
    notes = [[f"20.n{user}{n}" for n in range(12)] for user in range(5)]
    shapes = [shape("40.top", *notes[at % 5][: at // 5 + 1], *BODY) for at in range(60)]
    assert [fault for fault, _, _ in told(seen(shapes))] == [Fault.INSERTED]


def test_other_text_before_constant_text_is_found() -> None:
    doctor = seen(shape("40.top", f"80.doc{at}", *BODY, user=["300.ask"]) for at in range(60))
    ((fault, breaks, wasted),) = told(doctor)
    assert fault is Fault.VARYING
    assert wasted == breaks * (500 + 75)
    assert doctor.findings()[0].frame == ""


def test_other_text_on_top_is_found() -> None:
    assert [fault for fault, _, _ in told(seen(shape(f"80.doc{at}", *BODY) for at in range(60)))] == [Fault.VARYING]


@pytest.mark.parametrize(
    "shapes",
    [
        [shape("40.top", *BODY, user=[f"400.q{at}"]) for at in range(60)],
        [shape("40.top", *BODY, f"400.doc{at % 7}", f"400.doc{at % 5}", user=[f"9.q{at}"]) for at in range(200)],
        [shape(f"400.app{at % 4}", *BODY) for at in range(200)],
        [shape(dated(at), "100.short") for at in range(60)],
        [shape(dated(at // 40), *BODY) for at in range(200)],
        [shape("40.top", *BODY)] * 60,
        [shape(dated(at), *BODY) for at in range(15)],
        [shape(dated(at), "300.body", user=[f"100000.q{at}"]) for at in range(60)],
    ],
    ids=["questions", "documents", "applications", "little", "rarely", "same", "few", "small share"],
)
def test_what_is_no_fault_is_not_told(shapes: list[str]) -> None:
    assert told(seen(shapes)) == []


def test_a_request_stands_for_those_that_were_not_looked_at() -> None:
    shapes = [shape(dated(at), *BODY) if at % 3 == 2 else None for at in range(90)]
    doctor = seen(shapes)
    assert (doctor.requests, doctor.looked_at) == (90, 30)
    assert told(doctor) == [(Fault.DATE, 29, 3 * 27 * 500)]


def test_what_is_no_shape_is_a_request_that_was_not_looked_at() -> None:
    doctor = seen(["nonsense", "1;s", "1;s;s"])
    assert (doctor.requests, doctor.looked_at, doctor.findings()) == (3, 0, [])


def test_waste_is_told_once_and_only_when_it_is_sure() -> None:
    doctor = Doctor()
    wastes = [doctor.note("t", "m", 0.0, shape(dated(at), *BODY)) for at in range(30)]
    assert wastes[:19] == [[]] * 19
    tokens = [waste.tokens for each in wastes for waste in each]
    assert sum(tokens) == doctor.findings()[0].wasted_tokens
    assert len(tokens) == 11


def test_tenants_models_and_salts_are_kept_apart() -> None:
    doctor = Doctor()
    for at in range(60):
        doctor.note("a", "m", 0.0, shape(dated(at), *BODY))
        doctor.note("b", "m", 0.0, shape("40.top", *BODY))
        doctor.note("c", "m", 0.0, shape("40.top", *BODY, salt=f"s{at}"))
    assert [finding.tenant for finding in doctor.findings()] == ["a"]
    assert doctor.findings("b") == []


def test_groups_and_what_waits_for_them_are_bounded() -> None:
    doctor = Doctor()
    for at in range(MAX_GROUPS + 5):
        assert doctor.note(f"t{at}", "m", 0.0, None) == ()
    for at in range(MAX_GROUPS + 5):
        doctor.note(f"t{at}", "m", 0.0, shape(*BODY))
    for at in range(40):
        doctor.note(f"t{MAX_GROUPS + 1}", "m", 0.0, shape(dated(at), *BODY))
    assert doctor.findings() == []


def test_spots_of_a_group_are_bounded() -> None:
    group = Group(1, 0.0)
    spots = [group.spot(Fault.DATE, Segment("s", at, 9, "e", "f"), 0, at, at) for at in range(MAX_SPOTS + 2)]
    assert spots[-2:] == [None, None]
    full = group.spots[Fault.DATE, "s", 0]
    for at in range(100):
        assert group.spot(Fault.DATE, Segment("s", 0, 9, "e", "f"), 0, at, at) is full
    assert len(full.nodes) == len(full.above) == MAX_VALUES


def test_a_place_is_told_by_its_first_line() -> None:
    group = Group(1, 0.0)
    group.spot(Fault.VARYING, Segment("s", 5, 9, "e", "f"), 50, None, 1)
    spot = group.spot(Fault.VARYING, Segment("s", 3, 9, "e", "f"), 30, None, 1)
    assert spot is not None
    assert (spot.segment.line, spot.position) == (3, 30)


def test_more_places_than_are_kept_end_the_search() -> None:
    lines = 40
    doctor = Doctor()
    group_key = ("t", "m", "s")
    doctor.note("t", "m", 0.0, shape(dated(0), *BODY))
    group = doctor._groups[group_key]
    for at in range(MAX_SPOTS):
        group.spot(Fault.EMAIL, Segment("s", at, 9, "e", "f"), 0, at, at)
    for at in range(1, lines):
        doctor.note("t", "m", 0.0, shape(dated(at), *BODY))
        doctor.note("t", "m", 0.0, shape(f"80.doc{at}", *BODY))
    assert doctor.findings() == []


def test_with_little_memory_less_is_found_and_nothing_wrong() -> None:
    clean = [shape(f"40.top{at % 3}", *BODY, user=[f"{n}.q{at}{n}" for n in range(9)]) for at in range(300)]
    assert told(seen(clean, Doctor(64))) == []
    found: list[Finding] = seen((shape(dated(at), *BODY) for at in range(300)), Doctor(4)).findings()
    assert {finding.fault for finding in found} <= {Fault.DATE}
