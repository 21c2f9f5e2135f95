"""FairOrder: equal shares of work by weight, nothing saved up while idle, nobody remembered for long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.shares import FairOrder, Place


def add(order: FairOrder[str], names: str, work: float = 1.0, weight: float = 1.0) -> list[Place]:
    """Let some wait whose tenants are named by their letters."""
    return [order.add(name, name, weight, work) for name in names]


def test_tenants_take_turns_whoever_came_first() -> None:
    order: FairOrder[str] = FairOrder()
    add(order, "aaabbc")
    assert "".join(order) == "abcaba"
    assert (next(iter(order)), order.last()) == ("a", ("a", 5.0))


def test_turns_are_of_work_and_by_weight() -> None:
    order: FairOrder[str] = FairOrder()
    add(order, "aa", work=4.0)
    add(order, "bbbb", work=2.0)
    add(order, "cccc", work=4.0, weight=4.0)
    assert "".join(order) == "abccbccabb"


def test_who_was_idle_has_nothing_saved_up() -> None:
    order: FairOrder[str] = FairOrder()
    a = add(order, "aaaaaaaa")
    for place in a[:4]:
        order.serve(place)
    add(order, "bbbb")
    assert "".join(order) == "abababab"


def test_what_was_not_served_is_given_back() -> None:
    order: FairOrder[str] = FairOrder()
    first, *others = add(order, "aaaa")
    for place in others:
        order.drop(place)
    add(order, "ba")
    assert "".join(order) == "aba"
    order.drop(first)
    assert "".join(order) == "ba"


def test_the_work_ahead_is_that_of_all_before() -> None:
    order: FairOrder[str] = FairOrder()
    places = add(order, "aaaa", work=3.0)
    assert [order.ahead(place) for place in places] == [0.0, 3.0, 6.0, 9.0]
    assert order.work == 12.0


def test_time_goes_on_by_what_each_tenant_should_have_had() -> None:
    order: FairOrder[str] = FairOrder()
    first, *others = add(order, "aaa", work=6.0)
    add(order, "b", work=6.0, weight=2.0)
    assert [order.lead(place) for place in others] == [6.0, 12.0]
    assert order.serve(first) == 2.0
    assert [order.lead(place) for place in others] == [4.0, 10.0]
    assert order.lead(first) == 0.0


def test_debt_is_what_a_tenant_has_had_more_in_requests() -> None:
    order: FairOrder[str] = FairOrder()
    places = add(order, "aaa", work=5.0)
    (other,) = add(order, "b", work=5.0)
    assert [order.debt(place) for place in (places[0], other)] == [0.5, 0.0]
    order.serve(places[0])
    assert [order.debt(place) for place in (places[1], other)] == [1.0, -0.5]
    order.serve(places[1])
    assert [order.debt(place) for place in (places[2], other)] == [1.0, -1.0]


def test_tenants_that_are_even_with_the_others_are_forgotten() -> None:
    order: FairOrder[str] = FairOrder()
    add(order, "z", work=1e9)
    for at in range(1000):
        (place,) = [order.add("x", f"t{at}", 1.0, 1.0)]
        order.serve(place)
    assert int(repr(order).split()[3]) < 100


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["add", "serve", "drop"]),
        st.integers(0, 1 << 16),
        st.sampled_from("abcd"),
        st.sampled_from([0.5, 1.0, 2.0]),
        st.integers(1, 50),
    ),
    max_size=80,
)


@given(OPERATIONS)
def test_what_is_kept_is_what_waits(operations: list[tuple[str, int, str, float, int]]) -> None:
    order: FairOrder[int] = FairOrder()
    waiting: dict[int, Place] = {}
    for at, (operation, pick, tenant, weight, work) in enumerate(operations):
        if operation == "add":
            waiting[at] = order.add(at, tenant, weight, work)
        elif waiting:
            place = waiting.pop(list(waiting)[pick % len(waiting)])
            (order.serve if operation == "serve" else order.drop)(place)
        assert sorted(order) == sorted(waiting)
        assert len(order) == len(waiting)
        assert order.work == pytest.approx(sum(place.work for place in waiting.values()))
        in_turn = sorted(waiting.values())
        for rank, place in enumerate(in_turn):
            assert order.ahead(place) == pytest.approx(sum(each.work for each in in_turn[:rank]))
        tenants = {place.tenant for place in waiting.values()}
        assert repr(order).startswith(f"<FairOrder {len(waiting)} of ")
        assert len(tenants) <= int(repr(order).split()[3]) <= 4
    for place in waiting.values():
        order.drop(place)
    assert repr(order) == "<FairOrder 0 of 0 tenants>"


def test_a_tenant_that_comes_and_goes_while_nothing_gets_on_takes_no_memory() -> None:
    order: FairOrder[int] = FairOrder()
    order.add(0, "stuck", 1.0, 100.0)
    order.serve(order.add(1, "a", 1.0, 1000.0))
    for at in range(1000):
        order.drop(order.add(at, "a", 1.0, 1000.0))
    assert len(order._ahead) < 100
    ahead = order.add(2, "a", 1.0, 1.0)
    assert order.lead(ahead) > 0  # and it is remembered what it has had


def test_who_is_back_is_next_behind_those_that_were_back_before_and_charged_once() -> None:
    order: FairOrder[str] = FairOrder()
    order.serve(order.add("first", "a", 1.0, 10.0))
    order.add("waits", "b", 1.0, 10.0)
    order.add("is back", "a", 1.0, 10.0, is_back=True)
    order.add("is back too", "c", 1.0, 10.0, is_back=True)
    order.add("next", "c", 1.0, 10.0)
    assert list(order) == ["is back", "is back too", "waits", "next"]
