"""Bursts at the door: nobody is held for longer than a window, nor refused where there is room; holding is no load."""

import pytest

from policies.flow import Flow
from policies.tickets import Refusal, ServiceClass, State
from tests.policies.doors import ONE, Door, places
from tests.policies.fleets import request
from tests.policies.test_admission import states

SMOOTH_S = 0.02


def door_of(count: int, max_queued: int = 1000, max_queue_wait_s: float = 30.0) -> Door:
    """Give a door before one engine with so many places."""
    rules = (ServiceClass("interactive", max_queued=max_queued, max_queue_wait_s=max_queue_wait_s),)
    return Door.of(places(count), classes=rules, smoothing_s=SMOOTH_S)


def test_a_burst_that_goes_on_is_placed_at_the_end_of_each_window_though_no_timer_came() -> None:
    door = Door.of(places(1000), classes=ONE, smoothing_s=SMOOTH_S)
    tickets = [door.ask("a", 0.005 * at) for at in range(100)]
    assert states(tickets[:90]) == ["granted"] * 90
    assert max(ticket.waited_s for ticket in tickets) < 0.005 + SMOOTH_S


def test_a_window_whose_requests_have_all_gone_holds_nobody_back() -> None:
    door = door_of(2)
    _, held = [door.ask("a", 0.0) for _ in range(2)]
    door.end(held, 0.001)
    assert door.ask("a", 0.1).state is State.GRANTED
    assert door.ask("a", 0.2).state is State.WAITING
    assert door.queue.next_look == pytest.approx(30.2)


def test_who_may_not_wait_as_long_as_a_window_is_not_held() -> None:
    door = door_of(9, max_queue_wait_s=SMOOTH_S / 2)
    assert states([door.ask("a", 0.0) for _ in range(5)]) == ["granted"] * 5


@pytest.mark.parametrize("max_queued", [1, 3])
def test_nobody_is_refused_for_a_full_queue_while_there_is_room(max_queued: int) -> None:
    door = door_of(100, max_queued)
    burst = [door.ask("a", 0.0) for _ in range(20)]
    assert "refused" not in states(burst)
    door.send(door.queue.pump(SMOOTH_S), SMOOTH_S)
    assert states(burst) == ["granted"] * 20


def test_places_and_queue_take_exactly_what_they_may_of_a_burst() -> None:
    """Two places, a queue of three, forty at once: five are taken."""
    door = door_of(2, max_queued=3)
    burst = [door.ask("a", 0.0) for _ in range(40)]
    door.send(door.queue.pump(SMOOTH_S), SMOOTH_S)
    found = states(burst)
    assert (found.count("granted"), found.count("waiting"), found.count("refused")) == (2, 3, 35)
    assert {ticket.refusal for ticket in burst if ticket.refusal} == {Refusal.FULL}


def paced(door: Door) -> None:
    """Let the queue learn that one leaves each second, of the first endpoint's two places."""
    running, other = door.ask("a", 0.0), door.ask("a", 0.1)
    for at in range(1, 4):
        waiting = door.ask("a", at - 0.9)
        door.end(running, float(at))
        running = waiting
    door.end(running, 4.0)
    door.end(other, 4.0)


def test_who_waits_on_after_a_burst_is_told_its_real_wait() -> None:
    """And predictions of later ones are not put right by what was only the time to the end of the window."""
    door = door_of(2)
    paced(door)
    burst = [door.ask("a", 5.0) for _ in range(12)]
    door.send(door.queue.pump(5.02), 5.02)
    waiting = [ticket for ticket in burst if ticket.state is State.WAITING]
    assert len(waiting) == 10
    told = sorted(ticket.predicted_wait_s for ticket in waiting)
    assert told[0] < 1.5
    assert told[-1] > 5
    now = 5.02
    while running := [ticket for ticket in burst if ticket.state is State.GRANTED]:
        now += 1.0
        door.end(running[0], now)
    assert door.queue.errors_in("interactive").quantile(0.5) < 2


def test_who_would_miss_its_deadline_behind_a_burst_is_refused_at_the_end_of_the_window() -> None:
    door = door_of(2)
    paced(door)
    burst = [door.ask("a", 5.0, deadline=5.0 + (30 if at else 3.0)) for at in range(12)]
    hurried = [door.ask("a", 5.0, deadline=7.0) for _ in range(4)]
    changed = door.queue.pump(5.02)
    assert {ticket.refusal for ticket in hurried} == {Refusal.DEADLINE}
    assert min(ticket.predicted_wait_s for ticket in hurried) > 2
    assert set(hurried) < set(changed)
    assert "refused" not in states(burst)


def test_being_held_teaches_nothing_of_the_pace() -> None:
    """Light load in small bursts: nobody would have to wait."""
    door = door_of(10)
    for turn in range(100):
        burst = [door.ask("a", 1.0 * turn) for _ in range(4)]
        door.send(door.queue.pump(turn + SMOOTH_S), turn + SMOOTH_S)
        assert states(burst) == ["granted"] * 4
        for ticket in burst:
            door.end(ticket, turn + 0.5)
    for _ in range(40):
        door.ask("a", 100.0)
    assert door.queue.predicted_wait_s("interactive", 100.01) == 0


def test_who_waited_before_a_burst_keeps_what_it_was_told() -> None:
    """It waits for memory; the burst comes for what it leaves."""
    door = Door.of(Flow(tpot_slo_s=1.0), smoothing_s=SMOOTH_S)
    (at,) = door.pool.endpoints
    at.report.kv_capacity_tokens = 20_000
    door.offer(request("running", (1, 200), output=100), 0.0)
    big = door.offer(request("big", (2, 250), output=100), 0.5)
    burst = [door.ask("a", 1.0) for _ in range(4)]
    assert states([big, *burst]) == ["waiting", "granted", "waiting", "waiting", "waiting"]
    door.send(door.queue.pump(1.0 + SMOOTH_S), 1.0 + SMOOTH_S)
    assert states([big, *burst]) == ["waiting"] + ["granted"] * 4
    assert big.predicted_wait_s == 0
