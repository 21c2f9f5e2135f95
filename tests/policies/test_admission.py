"""AdmissionQueue: no place is lost or given twice, nobody waits for a noisy neighbour, and no comes early."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.endpoint import Pool
from policies.flow import Flow
from policies.health import State as HealthState
from policies.lines import PATIENCE_S
from policies.nearest import OVERDUE, WINDOW
from policies.policy import Reason
from policies.pools import Standing
from policies.spread import LeastRequests
from policies.tickets import CLASSES, Refusal, ServiceClass, State, Ticket
from tests.policies.doors import ONE, Door, places
from tests.policies.fleets import endpoint, request


def states(tickets: list[Ticket]) -> list[str]:
    return [ticket.state.value for ticket in tickets]


# Places.


def test_two_run_three_wait_and_the_others_are_refused_at_once() -> None:
    door = Door.of(places(2), classes=(ServiceClass("interactive", max_queued=3),))
    tickets = [door.ask("t", 0.0, f"r{at}") for at in range(40)]
    assert states(tickets) == ["granted"] * 2 + ["waiting"] * 3 + ["refused"] * 35
    assert {ticket.refusal for ticket in tickets[5:]} == {Refusal.FULL}
    assert repr(door.queue) == "<AdmissionQueue 2/2 running, 3/3 waiting>"
    assert repr(tickets[0]) == "<Ticket r0 granted e0>"
    assert repr(tickets[-1]) == "<Ticket r39 refused queue_full>"


def test_all_of_ten_are_served_two_at_a_time() -> None:
    door = Door.of(places(2), classes=ONE)
    tickets = [door.ask("t", 0.0, f"r{at}", deadline=10.0) for at in range(10)]
    for now in (1.0, 2.0, 3.0, 4.0, 5.0):
        running = [ticket for ticket in tickets if ticket.state is State.GRANTED]
        assert len(running) == 2
        for ticket in running:
            door.end(ticket, now)
    assert states(tickets) == ["left"] * 10
    assert repr(door.queue) == "<AdmissionQueue 0/2 running, 0/100 waiting>"


def test_a_thousand_clients_that_leave_the_queue_leave_nothing() -> None:
    door = Door.of(places(1), classes=(ServiceClass("interactive", max_queued=1000),))
    first = door.ask("t", 0.0, "first")
    gone = [door.ask("t", 0.0, f"r{at}") for at in range(1000)]
    for ticket in gone:
        assert door.end(ticket, 0.5) == []
    assert repr(door.queue) == "<AdmissionQueue 1/1 running, 0/1000 waiting>"
    assert door.queue.next_deadline is None
    door.end(first, 1.0)
    assert door.ask("t", 1.0, "next").state is State.GRANTED


def test_who_is_granted_and_gone_in_one_tick_passes_its_place_on() -> None:
    door = Door.of(places(1), classes=ONE, is_late=True)
    first, second, third = (door.ask("t", 0.0, name) for name in "abc")
    assert door.end(first, 1.0) == [second]
    assert door.end(second, 1.0) == [third]  # before anybody could tell it
    assert states([first, second, third]) == ["left", "left", "granted"]
    assert repr(door.queue) == "<AdmissionQueue 1/1 running, 0/100 waiting>"


def test_who_is_gone_before_its_place_comes_free_does_not_get_it() -> None:
    door = Door.of(places(1), classes=ONE, is_late=True)
    first, second, third = (door.ask("t", 0.0, name) for name in "abc")
    assert door.end(second, 1.0) == []
    assert door.end(first, 1.0) == [third]
    assert door.end(second, 1.0) == door.end(first, 1.0) == []
    assert states([first, second, third]) == ["left", "left", "granted"]


def test_who_needs_what_only_one_engine_can_waits_for_that_one() -> None:
    door = Door.of(places(1), engines=2, classes=ONE)
    plain, able = door.pool.endpoints
    able.can = frozenset(("keep apart",))
    first = door.ask("t", 0.0, "first", needs="keep apart")
    needy = door.ask("t", 0.0, "needy", needs="keep apart")
    other = door.ask("t", 0.0, "other")
    assert [first.endpoint, needy.endpoint, other.endpoint] == [able, None, plain]
    door.end(other, 1.0)
    assert states([needy]) == ["waiting"]
    door.end(first, 2.0)
    assert needy.endpoint is able
    able.can = frozenset()
    assert door.ask("t", 3.0, "late", needs="keep apart").refusal is Refusal.NOBODY


def test_leaving_after_a_refusal_changes_nothing() -> None:
    door = Door.of(places(1), classes=(ServiceClass("interactive", max_queued=0),))
    door.ask("t", 0.0, "a")
    refused = door.ask("t", 0.0, "b")
    assert door.end(refused, 0.0) == door.queue.first_token(refused, 0.0) == []
    assert refused.state is State.REFUSED


def test_five_hundred_at_once_go_out_no_faster_than_there_is_room() -> None:
    """What is promised counts before the books hold it: the books see none of these."""
    door = Door.of(Flow(), engines=2, is_late=True)
    tickets = [door.ask("t", 0.02 * at / 500, f"r{at}") for at in range(500)]
    running = sum(ticket.state is State.GRANTED for ticket in tickets)
    assert 0 < running == door.queue.running < 500
    assert door.queue.saturation(0.02) >= 1


def test_a_place_counts_where_it_was_used_in_the_end() -> None:
    door = Door.of(places(1), engines=2, classes=ONE, is_late=True)
    first, second = door.ask("t", 0.0, "a"), door.ask("t", 0.0, "b")
    assert first.endpoint is not second.endpoint
    third = door.ask("t", 0.0, "c")
    door.queue.started(first, first.endpoint or door.pool.endpoints[0])
    door.queue.started(first, door.pool.endpoints[1])  # a second try, elsewhere
    door.queue.started(second, door.pool.endpoints[1])
    assert door.queue.leave(first, 1.0) == [third]
    assert third.endpoint is door.pool.endpoints[1]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["offer", "bound", "start", "first_token", "fail", "end", "expire", "pump"]),
        st.integers(0, 1 << 20),
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["interactive", "batch", "?"]),
        st.floats(0.1, 9.0),
    ),
    max_size=120,
)


@given(STEPS, st.integers(1, 3), st.booleans(), st.sampled_from([0.0, 0.7]))
def test_places_never_leak_in_any_order(
    steps: list[tuple[str, int, str, str, float]], most: int, is_late: bool, smoothing_s: float
) -> None:
    rules = (ServiceClass("interactive", 4, 5.0, 1.0), ServiceClass("batch", 3, 9.0, ceiling=0.9, floor=0.2))
    door = Door.of(Flow(max_inflight=most), engines=2, classes=rules, is_late=is_late, smoothing_s=smoothing_s)
    tickets: list[Ticket] = []
    for at, (step, pick, tenant, name, left_s) in enumerate(steps):
        now = at / 4
        waiting = [ticket for ticket in tickets if ticket.state is State.WAITING]
        late = [each for each in tickets if each.state is State.GRANTED and each not in door.charges]
        if step in ("offer", "bound"):
            asked = request(str(at), (pick % 5, pick % 40), output=pick % 300)
            asked = asked._replace(tenant=tenant, service_class=name, deadline=now + left_s)
            tickets.append(door.offer(asked, now, door.pool.endpoints[pick % 2] if step == "bound" else None))
        elif step == "start" and late:
            door.start(late[pick % len(late)], now)
        elif step == "first_token":
            prefilling = [each for each, charge in door.charges.items() if not charge.is_decoding]
            if prefilling:
                door.first_token(prefilling[pick % len(prefilling)], now)
        elif step == "fail" and door.charges:
            door.fail(list(door.charges)[pick % len(door.charges)], now)
        elif step == "end" and tickets:
            door.end(tickets[pick % len(tickets)], now)
        elif step == "expire":
            due = [ticket for ticket in waiting if ticket.deadline <= now]
            assert set(door.queue.expire(now)) == set(due)
        else:
            door.send(door.queue.pump(now), now)
        granted = [ticket for ticket in tickets if ticket.state is State.GRANTED]
        assert door.queue.running == len(granted)
        assert door.queue.waiting == sum(ticket.state is State.WAITING for ticket in tickets)
        for each in door.pool.endpoints:
            assert sum(ticket.endpoint is each for ticket in granted) <= most
    for ticket in tickets:
        door.end(ticket, 100.0)
    assert repr(door.queue) == f"<AdmissionQueue 0/{2 * most} running, 0/7 waiting>"
    assert {ticket.state for ticket in tickets} <= {State.LEFT, State.REFUSED}
    assert door.queue.saturation(100.0) == 0
    assert door.queue.next_deadline is None


# One endpoint, and second tries.


def test_who_needs_what_one_endpoint_holds_waits_for_room_there() -> None:
    door = Door.of(places(1), engines=2, classes=ONE)
    there, elsewhere = door.pool.endpoints
    first = door.ask("t", 0.0, holder=there)
    other = door.ask("t", 0.0)
    bound = door.ask("t", 0.1, holder=there)
    assert [first.endpoint, other.endpoint, bound.state] == [there, elsewhere, State.WAITING]
    assert door.end(other, 0.2) == []
    assert door.ask("t", 0.3).endpoint is elsewhere  # it holds up nobody
    assert door.end(first, 0.4) == [bound]
    assert bound.choice is not None
    assert (bound.endpoint, bound.choice.reason) == (there, Reason.HOLDS)
    there.health.state = HealthState.EJECTED
    assert door.ask("t", 0.5, holder=there).refusal is Refusal.NOBODY


def test_those_that_wait_for_one_endpoint_are_told_of_its_pace_alone() -> None:
    """Four engines serve one a second each; of eight that wait for the first of them, the last has seven before it."""
    door = Door.of(places(1), engines=4, classes=ONE)
    for _ in range(20):
        door.ask("t", 0.0)
    for now in (1.0, 2.0, 3.0, 4.0):
        for ticket in list(door.charges):
            door.end(ticket, now)
    bound = [door.ask("t", 4.0, holder=door.pool.endpoints[0]) for _ in range(8)]
    anywhere = door.ask("u", 4.0)
    assert bound[-1].predicted_wait_s == pytest.approx(7.0, rel=0.2)
    assert anywhere.predicted_wait_s < 3.0


def test_who_waits_for_one_endpoint_keeps_nobody_from_one_that_is_lent() -> None:
    door = Door.of(places(1), classes=ONE)
    longer = Pool("longer", [endpoint("long")])
    door.queue._policies = {**door.queue._policies, longer: LeastRequests(Random(1))}
    lent, standing = [], Standing(door.pool, (longer,))
    door.ask("t", 0.0)
    for at in range(2):
        ticket, changed = door.queue.offer(request(f"r{at}", (at, 2)), standing, 0.0)
        door.send([*changed, ticket], 0.0)
        lent.append(ticket)
    bound = door.ask("a", 0.0, holder=door.pool.endpoints[0])
    assert states([*lent, bound]) == ["granted", "waiting", "waiting"]
    assert lent[1] in door.end(lent[0], 1.0)
    assert states([lent[1], bound]) == ["granted", "waiting"]


def test_a_second_try_goes_where_there_is_room_and_else_waits_before_all_others() -> None:
    door = Door.of(places(1), engines=2, classes=ONE)
    failing, well = door.pool.endpoints
    first = door.ask("t", 0.0)
    assert first.endpoint is failing
    door.fail(first, 0.1)
    assert (first.state, first.endpoint) == (State.GRANTED, well)
    second = door.ask("a", 0.2)
    waiting = [door.ask("b", 0.3) for _ in range(3)]
    assert second.endpoint is failing
    failing.health.state = HealthState.EJECTED
    door.fail(second, 0.4)
    newcomer = door.ask("c", 0.5)
    assert states([second, *waiting, newcomer]) == ["waiting"] * 5
    assert second.predicted_wait_s == 0.0
    assert door.end(first, 1.0) == [second]
    assert second.endpoint is well
    assert second.waited_s == pytest.approx(0.6)
    assert repr(door.queue) == "<AdmissionQueue 1/2 running, 4/100 waiting>"


def test_who_comes_back_gives_its_place_to_another() -> None:
    door = Door.of(places(1), engines=2, classes=ONE)
    failing, well = door.pool.endpoints
    tickets = [door.ask("t", 0.0) for _ in range(2)]
    waiting = door.ask("t", 0.1)
    door.fail(tickets[0], 0.2)
    assert states([tickets[0], waiting]) == ["waiting", "granted"]
    assert waiting.endpoint is failing
    door.fail(waiting, 0.3)
    door.end(tickets[1], 0.4)
    assert (tickets[0].endpoint, waiting.state) == (well, State.WAITING)  # back in the order in which they came back


def test_who_has_failed_everywhere_is_told_so_at_once() -> None:
    door = Door.of(places(1), classes=ONE)
    only = door.ask("t", 0.0)
    waiting = door.ask("t", 0.0)
    door.fail(only, 0.1)
    assert (only.refusal, waiting.state) == (Refusal.NOBODY, State.GRANTED)
    assert repr(door.queue) == "<AdmissionQueue 1/1 running, 0/100 waiting>"


def test_a_second_try_waits_for_what_is_left_of_its_time_and_its_first_does_not_count() -> None:
    door = Door.of(places(1), engines=2, classes=(ServiceClass("interactive", max_queue_wait_s=2.0),))
    running = [door.ask("t", 0.0), door.ask("t", 0.0)]
    late, other = door.ask("t", 0.0), door.ask("u", 0.0)
    for ticket in running:
        door.end(ticket, 1.5)
    assert states([late, other]) == ["granted", "granted"]
    door.fail(late, 10.0)
    assert late.state is State.WAITING
    assert late.deadline == pytest.approx(10.5)
    assert door.queue.expire(10.4) == []
    assert door.queue.expire(10.6) == [late]
    assert late.refusal is Refusal.EXPIRED
    assert late.waited_s == pytest.approx(2.1)


# Tenants.


def test_a_hundred_of_one_tenant_do_not_keep_another_waiting() -> None:
    door = Door.of(places(1), classes=ONE)
    noisy = [door.ask("a", 0.0, f"a{at}") for at in range(100)]
    quiet = door.ask("b", 0.5, "b")
    for now in (1.0, 2.0):
        door.end(next(each for each in noisy if each.state is State.GRANTED), now)
        if quiet.state is State.GRANTED:
            break
    assert quiet.state is State.GRANTED
    assert quiet.waited_s <= 2.0


PLACES = 4  # each serves one request in as many seconds


def waits_beside(noisy: int, seed: int) -> float:
    """Serve a tenant that fills a tenth of the places, beside one of `noisy` times as many requests, in bursts.

    Returns: its 99th percentile of wait, in seconds.
    """
    door = Door.of(places(PLACES), classes=(ServiceClass("interactive", 50, 20.0),))
    chance = Random(seed)
    quiet: list[Ticket] = []
    for now in range(4000):
        over = [each for each, charge in door.charges.items() if now - charge.dispatched_at >= PLACES - 0.5]
        for ticket in over:
            door.end(ticket, float(now))
        door.send(door.queue.expire(float(now)), float(now))
        for tenant in ["b"] * (chance.random() < 0.1) + ["a"] * noisy * (chance.random() < 0.1):
            ticket = door.ask(tenant, now + 0.5)
            if tenant == "b":
                quiet.append(ticket)
    assert all(ticket.refusal is None for ticket in quiet)
    waits = sorted(ticket.waited_s for ticket in quiet)
    return waits[len(waits) * 99 // 100]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_tenant_at_ten_times_the_load_costs_another_at_most_a_service_time(seed: int) -> None:
    """R = 4,000 seconds: the queue is full of the noisy one throughout."""
    alone, beside = waits_beside(0, seed), waits_beside(10, seed)
    assert beside <= max(1.2 * alone, PLACES)


def test_what_is_too_much_is_taken_from_whoever_asked_for_most() -> None:
    door = Door.of(places(1), classes=(ServiceClass("interactive", max_queued=3),))
    running, *noisy = (door.ask("a", 0.0, f"a{at}") for at in range(4))
    quiet = door.ask("b", 0.0, "b")
    assert running.state is State.GRANTED
    assert states([*noisy, quiet]) == ["waiting", "waiting", "refused", "waiting"]
    assert noisy[-1].refusal is Refusal.SHED


def test_tenants_get_work_by_weight() -> None:
    door = Door.of(places(1), classes=ONE)
    for at in range(30):
        door.ask("one", 0.0, f"a{at}")
        door.ask("two", 0.0, f"b{at}", weight=2.0)
    served = {"one": 0, "two": 0}
    for at in range(30):
        ticket = next(iter(door.charges))
        served[ticket.request.tenant] += 1
        door.end(ticket, float(at))
    assert served["two"] == pytest.approx(20, abs=2)


def test_of_a_hundred_thousand_tenants_nothing_stays() -> None:
    door = Door.of(places(1), classes=(ServiceClass("interactive", max_queued=10),))
    for at in range(100_000):
        door.ask(f"t{at}", at / 1e3, "r")
        if at % 3 == 0:
            door.end(next(iter(door.charges)), at / 1e3)
    order = door.queue._lines.named["interactive"].order
    assert 9 <= len(order) <= 10
    assert int(repr(order).split()[3]) < 100
    while door.charges:
        door.end(next(iter(door.charges)), 101.0)
    assert repr(order) == "<FairOrder 0 of 0 tenants>"
    assert not door.queue._deadlines or door.queue.next_deadline is None
    assert len(door.queue._deadlines) < 200


# Where to.


def test_of_those_that_are_next_the_one_that_is_warm_there_goes_first() -> None:
    door = Door.of(places(1), classes=ONE)
    first = door.offer(request("a", (1, 40)), 0.0)
    cold, warm = door.offer(request("b", (2, 40)), 0.0), door.offer(request("c", (1, 40)), 0.1)
    assert door.end(first, 0.2) == [warm]
    assert warm.choice is not None
    assert (warm.choice.reason, warm.choice.cached_tokens) == (Reason.ROOM, 40 * 64)
    assert cold.state is State.WAITING


def test_who_has_waited_for_long_goes_before_the_warm() -> None:
    door = Door.of(places(1), classes=(ServiceClass("interactive", max_queue_wait_s=10.0),))
    running = door.offer(request("a", (1, 900)), 0.0)
    cold = door.offer(request("b", (2, 900))._replace(tenant="b"), 0.0)
    warm = [door.offer(request(f"w{at}", (1, 900)), 0.1) for at in range(2)]
    assert door.end(running, 10 * OVERDUE - 1) == warm[:1]
    assert door.end(warm[0], 10 * OVERDUE + 0.05) == [cold]


def test_only_so_many_are_looked_at() -> None:
    door = Door.of(places(1), classes=ONE)
    running = door.offer(request("a", (1, 40))._replace(tenant="t"), 0.0)
    cold = [door.offer(request(f"c{at}", (at + 2, 40)), 0.0) for at in range(WINDOW)]
    warm = door.offer(request("w", (1, 40)), 0.0)
    assert door.end(running, 0.1) == cold[:1]
    assert door.end(cold[0], 0.2) == [warm]


def test_who_cannot_go_there_is_passed_over() -> None:
    door = Door.of(places(1), engines=2, classes=ONE)
    e0, e1 = door.pool.endpoints
    e1.models = frozenset({"other"})
    door.ask("t", 0.0, "a")
    waiting = door.ask("t", 0.0, "b")
    other = door.ask("t", 0.0, "c", model="other")
    assert states([waiting, other]) == ["waiting", "granted"]
    later = door.ask("t", 0.0, "d", model="other")
    assert door.end(other, 1.0) == [later]
    assert later.endpoint is e1
    e0.models = frozenset()
    assert door.queue.pump(1.0) == []


def test_cached_prompts_of_a_hundred_thousand_tokens_count_little_and_cold_ones_wait() -> None:
    warm, cold = Door.of(Flow(), engines=2), Door.of(Flow(), engines=2)
    for each in warm.pool.endpoints:
        warm.index.learn(each, request("x", (1, 1563)).prefix, 0.0)
    cached = [warm.offer(request(f"r{at}", (1, 1563)), 0.0) for at in range(10)]
    new = [cold.offer(request(f"r{at}", (at, 1563)), 0.0) for at in range(10)]
    assert states(cached) == ["granted"] * 10
    assert states(new) == ["granted"] * 2 + ["waiting"] * 8


def test_an_endpoint_that_is_down_or_full_gets_nobody() -> None:
    door = Door.of(places(1), classes=ONE)
    only = door.pool.endpoints[0]
    running, waiting = door.ask("t", 0.0), door.ask("t", 0.0)
    only.health.state = HealthState.EJECTED
    assert door.end(running, 0.5) == door.queue.pump(1.0) == []
    assert door.queue.saturation(1.0) == 0
    only.health.state = HealthState.READY
    only.report.kv_usage, only.report.at = 1.0, 1.0
    assert door.queue._fill(only, 1.0) == []
    only.report.kv_usage = 0.5
    assert door.queue.pump(2.0) == [waiting]


def test_a_queue_is_not_burnt_on_endpoints_of_which_nobody_knows_whether_they_live() -> None:
    """Dead engines fail at once, and would have room for the next: those who wait do so until a check has told."""
    door = Door.of(places(2), engines=2, classes=ONE)
    running = [door.ask("a", 0.0) for _ in range(4)]
    waiting = [door.ask("a", 0.1) for _ in range(10)]
    for each in door.pool.endpoints:
        each.health.state = HealthState.SUSPECT
    for ticket in running:
        door.end(ticket, 0.2)
    assert door.queue.pump(0.3) == []
    assert door.ask("b", 0.4).state is State.WAITING
    door.pool.endpoints[0].health.answered()
    door.send(granted := door.queue.pump(0.5), 0.5)
    assert len(granted) == 2
    for ticket in [*waiting, *granted]:
        door.end(ticket, 0.6)
    door.pool.endpoints[0].health.state = HealthState.SUSPECT
    assert repr(door.queue) == "<AdmissionQueue 0/4 running, 0/100 waiting>"
    assert door.ask("a", 0.7).state is State.GRANTED  # who comes alone finds out


def test_a_longer_pool_lends_when_it_is_idle_again() -> None:
    door = Door.of(places(1), classes=ONE)
    longer = Pool("longer", [endpoint("long")])
    door.queue._policies = {**door.queue._policies, longer: LeastRequests(Random(1))}
    standing = Standing(door.pool, (longer,))
    tickets = []
    for at in range(4):
        ticket, changed = door.queue.offer(request(f"r{at}", (at, 2)), standing, 0.0)
        door.send([*changed, ticket], 0.0)
        tickets.append(ticket)
    assert states(tickets) == ["granted"] * 2 + ["waiting"] * 2
    assert tickets[1].endpoint is longer.endpoints[0]
    assert door.end(tickets[1], 1.0) == [tickets[2]]
    assert tickets[2].endpoint is longer.endpoints[0]


# Classes.


def test_batch_waits_until_an_endpoint_is_less_full_than_interactive_may_make_it() -> None:
    door = Door.of(places(10), classes=(ServiceClass("interactive"), ServiceClass("batch", ceiling=0.5)))
    tickets = [door.ask("t", 0.0, f"b{at}", service_class="batch") for at in range(6)]
    assert states(tickets) == ["granted"] * 5 + ["waiting"]
    assert door.ask("t", 0.0, "i").state is State.GRANTED
    assert door.queue.waiting_in("batch") == 1


def test_interactive_goes_first_and_batch_gets_its_floor() -> None:
    rules = (ServiceClass("interactive", 1000, 1e3), ServiceClass("batch", 1000, 1e3, ceiling=0.5, floor=0.2))
    door = Door.of(places(1), classes=rules)
    for at in range(60):
        door.ask("t", 0.0, f"i{at}")
        door.ask("t", 0.0, f"b{at}", service_class="batch")
    served = []
    for at in range(50):
        ticket = next(iter(door.charges))
        served.append(ticket.request.service_class)
        door.end(ticket, at / 10)
    assert served.count("batch") == pytest.approx(10, abs=2)


def test_a_newcomer_does_not_overtake_who_can_go_where_there_is_room() -> None:
    door = Door.of(places(1), classes=ONE)
    only = door.pool.endpoints[0]
    running, first = door.ask("t", 0.0), door.ask("t", 0.0, "a")
    only.health.state = HealthState.EJECTED
    door.end(running, 0.5)
    only.health.state = HealthState.READY
    second = door.ask("t", 1.0, "b")
    assert states([first, second]) == ["granted", "waiting"]


def test_classes_that_nobody_named_are_interactive_first() -> None:
    assert [rules.name for rules in CLASSES] == ["interactive", "batch"]
    door = Door.of(places(1))
    door.ask("t", 0.0, "a", service_class="unheard of")
    door.ask("t", 0.0, "b", service_class="unheard of")
    assert door.queue.waiting_in("interactive") == 1


# Waiting.


def drained(door: Door, names: str = "abcdefgh") -> tuple[list[Ticket], float]:
    """Let some through, one a second; give the tickets and when the last but two began."""
    tickets = [door.ask("t", 0.0, name) for name in names]
    now = 0.0
    while sum(ticket.state is State.WAITING for ticket in tickets) > 2:
        now += 1.0
        door.end(next(each for each in tickets if each.state is State.GRANTED), now)
    return tickets, now


def test_nothing_is_predicted_before_anybody_was_seen_to_wait() -> None:
    door = Door.of(places(1), classes=ONE)
    door.ask("t", 0.0, "a")
    assert door.ask("t", 0.0, "b").predicted_wait_s == 0.0


def test_the_wait_is_the_work_ahead_over_the_pace_of_the_queue() -> None:
    door = Door.of(places(1), classes=ONE)
    _, now = drained(door)
    assert door.queue.predicted_wait_s("interactive", now) == pytest.approx(2.0, rel=0.2)
    late = door.ask("t", now, "z")
    assert late.predicted_wait_s == pytest.approx(2.0, rel=0.2)  # two are ahead of it, and one runs
    assert door.queue.errors_in("interactive").count == 5


def test_waits_of_which_nothing_could_be_known_put_no_later_prediction_right() -> None:
    """The first queue of all: while no pace is known it is reckoned to wait for nothing, and waits for long."""
    door = Door.of(places(1), classes=ONE)
    tickets = [door.ask("t", 0.0) for _ in range(21)]
    for second in range(1, 21):
        door.end(next(each for each in tickets if each.state is State.GRANTED), float(second))
    tickets += [door.ask("t", 20.0) for _ in range(3)]
    for second in range(21, 24):
        door.end(next(each for each in tickets if each.state is State.GRANTED), float(second))
    late = [door.ask("t", 23.0) for _ in range(5)]
    assert 4 < late[-1].predicted_wait_s < 8  # it waits for five; who comes first is reckoned to wait for none


def test_who_would_miss_its_deadline_is_refused_on_arrival_and_pushes_nobody_out() -> None:
    door = Door.of(places(1), classes=ONE)
    tickets, now = drained(door)
    assert door.ask("t", now, "y", deadline=now + 1.0).refusal is Refusal.DEADLINE
    assert door.ask("t", now, "z", deadline=now + 9.0).state is State.WAITING
    assert door.ask("t", now, "x", deadline=now).refusal is Refusal.DEADLINE
    assert states(tickets[-2:]) == ["waiting", "waiting"]


def test_a_class_that_yields_is_predicted_no_slower_than_by_its_floor() -> None:
    """Batch had more than its floor and gets nothing for a while, which says nothing of what it will get."""
    rules = (ServiceClass("interactive", 1000, 1e3), ServiceClass("batch", 1000, 60.0, ceiling=0.5, floor=0.2))
    door = Door.of(places(10), classes=rules)
    early = [door.ask("t", 0.0, service_class="batch") for _ in range(6)]
    assert states(early) == ["granted"] * 5 + ["waiting"]
    for _ in range(60):
        door.ask("t", 0.1)
    now = 0.0

    def step() -> float:
        """Let one end, and another come in its place."""
        door.end(next(iter(door.charges)), now + 0.1)
        door.ask("t", now + 0.1)
        return now + 0.1

    while early[-1].state is State.WAITING:
        now = step()
    assert now > 1.0
    last = [door.ask("t", now, f"b{at}", service_class="batch") for at in range(20)][-1]
    while last.state is State.WAITING:
        now = step()
    assert last.predicted_wait_s == pytest.approx(last.waited_s, rel=0.3)


def test_what_a_floor_comes_to_is_known_before_anybody_of_the_class_was_served() -> None:
    rules = (ServiceClass("interactive", 1000, 1e3), ServiceClass("batch", 1000, 60.0, ceiling=0.5, floor=0.2))
    door = Door.of(places(1), classes=rules)
    for _ in range(30):
        door.ask("t", 0.0)
    door.queue._lines.named["batch"].served.add(0.0, 1e6)  # it had all of it
    ahead = [door.ask("t", 0.1, service_class="batch") for _ in range(2)]
    for at in range(1, 11):
        door.end(next(iter(door.charges)), at / 10 + 0.1)
    late = door.ask("t", 1.1, service_class="batch")
    assert states(ahead) == ["waiting", "waiting"]
    assert late.predicted_wait_s == pytest.approx(2 / (10 * 0.2), rel=0.2)  # ten a second, of which a fifth


def test_a_deadline_that_passes_in_the_queue_is_told_then() -> None:
    door = Door.of(places(1), classes=ONE)
    running = door.ask("t", 0.0, "a")
    waiting = door.ask("t", 0.0, "b", deadline=3.0)
    last = door.ask("t", 0.0, "c")
    assert door.queue.next_deadline == 3.0
    assert door.queue.expire(2.9) == []
    assert door.end(running, 3.0) == [waiting, last]
    assert (waiting.refusal, waiting.waited_s, last.state) == (Refusal.EXPIRED, 3.0, State.GRANTED)


def test_a_wait_longer_than_the_class_may_is_refused_on_arrival() -> None:
    door = Door.of(places(1), classes=(ServiceClass("interactive", max_queue_wait_s=7.0),))
    _, now = drained(door)
    tickets = [door.ask("t", now, f"z{at}") for at in range(20)]
    refused = [ticket for ticket in tickets if ticket.state is State.REFUSED]
    assert 12 <= len(refused) <= 17
    assert {ticket.refusal for ticket in refused} == {Refusal.WAIT}
    assert refused[0].predicted_wait_s > 7.0


def test_a_crowd_may_wait_less_than_a_burst() -> None:
    rules = ServiceClass("interactive", max_queue_wait_s=30.0, crowded_wait_s=3.0)
    burst, crowd = Door.of(places(1), classes=(rules,)), Door.of(places(1), classes=(rules,))
    tickets, now = drained(crowd)
    assert now > PATIENCE_S
    assert states([crowd.ask("t", now, name) for name in "xy"]) == ["waiting", "waiting"]
    assert crowd.ask("t", now, "z").refusal is Refusal.WAIT
    tickets, now = drained(burst)
    for ticket in tickets:
        burst.end(ticket, now)
    assert burst.queue.running == burst.queue.waiting == 0
    tickets = [burst.ask("t", now, f"z{at}") for at in range(10)]
    assert states(tickets) == ["granted"] + ["waiting"] * 9


def test_endpoints_without_a_limit_are_shown_without_one() -> None:
    assert repr(Door.of(Flow(), engines=2).queue) == "<AdmissionQueue 0 running, 0/2048 waiting>"


def cramped(kv_tokens: int) -> Door:
    """Give a door where only memory counts, of one engine with so much of it; nobody waits for more than 30 s."""
    door = Door.of(Flow(tpot_slo_s=1e3), classes=(ServiceClass("interactive", max_queue_wait_s=30.0),))
    door.pool.endpoints[0].report.kv_capacity_tokens = kv_tokens
    return door


def test_memory_is_kept_for_one_that_would_never_find_it() -> None:
    """A prompt of 64,000 tokens where small ones come all the time and a cache of 100,000 is never empty."""
    door = cramped(100_000)
    running: list[Ticket] = []

    def come(name: str, now: float) -> None:
        ticket = door.offer(request(name, (1000 + int(name), 150), output=400), now)
        if ticket.state is State.GRANTED:
            door.first_token(ticket, now)
            running.append(ticket)

    for at in range(5):
        come(str(at), 0.0)
    big = door.offer(request("big", (1, 1000), output=100), 0.1)
    for turn in range(5, 70):
        now = 0.4 * turn
        if running:
            door.end(running.pop(0), now)
        if big.state is not State.WAITING:
            break
        come(str(turn), now)
    assert repr(big) == "<Ticket big granted e0>"
    assert 22.5 < big.waited_s < 30


def test_what_is_kept_is_let_go_when_its_endpoint_is_or_the_one_it_is_kept_for() -> None:
    door = cramped(20_000)
    (at,) = door.pool.endpoints
    running = door.offer(request("r", (1, 200), output=100), 0.0)
    big = door.offer(request("big", (2, 250), output=100), 0.1)
    little = door.offer(request("little", (3, 10), output=10), 25.0)
    assert (running.state, big.state, little.state) == (State.GRANTED, State.WAITING, State.WAITING)
    at.health.state = HealthState.EJECTED
    assert door.queue.pump(25.1) == []
    at.health.state = HealthState.READY
    door.end(big, 25.2)
    assert door.queue.pump(25.3) == [little]


def test_what_is_kept_is_let_go_when_its_engine_has_restarted() -> None:
    """Whatever the health of the incarnation before: nobody gets anything there."""
    door = cramped(20_000)
    other = endpoint("other")
    other.report = door.pool.endpoints[0].report
    door.pool.endpoints.append(other)
    for seed in (1, 2):
        door.offer(request("r", (seed, 200), output=100), 0.0)
    big = door.offer(request("big", (3, 250), output=100), 0.1)
    running = [each for each in door.pool.endpoints if each.outstanding.requests]
    assert len(running) == 2
    kept = door.queue.pump(25.0) or door.queue._reserved(25.0)
    assert kept == (door.pool.endpoints[0], big)
    door.pool.endpoints[0] = renewed = endpoint("renewed", state=HealthState.STARTING)
    renewed.report = other.report
    assert door.queue._reserved(25.1) == (other, big)


def test_those_that_do_not_fit_hide_nobody_behind_them() -> None:
    door = cramped(20_000)
    running = door.offer(request("r", (1, 200), output=100), 0.0)
    blocked = [door.offer(request(f"b{at}", (10 + at, 200), output=100), 0.1) for at in range(WINDOW + 10)]
    little = door.offer(request("little", (5, 10), output=10), 0.2)
    assert running.state is State.GRANTED
    assert {ticket.state for ticket in blocked} == {State.WAITING}
    assert little.state is State.GRANTED


def test_a_context_that_no_endpoint_has_by_estimate_is_no_reason_to_wait_for_ever() -> None:
    door = Door.of(places(1), classes=ONE)
    (at,) = door.pool.endpoints
    at.max_context_tokens = 1000
    first = door.ask("a", 0.0)
    long = door.offer(request("long", (1, 20)), 0.1)
    assert long.state is State.WAITING
    assert door.end(first, 0.2) == [long]


# Bursts.


def test_a_burst_is_placed_in_fair_order_at_its_end() -> None:
    """A's ten come first and would fill both endpoints; B's one comes 4 ms later."""
    door = Door.of(places(2), engines=2, classes=ONE, smoothing_s=0.02)
    first = door.ask("a", 0.0)
    crowd = [door.ask("a", 0.001 * at) for at in range(1, 10)]
    late = door.ask("b", 0.014)
    assert first.state is State.GRANTED
    assert crowd[0].state is State.GRANTED  # as many as there are endpoints are no burst
    assert {ticket.state for ticket in [*crowd[1:], late]} == {State.WAITING}
    assert door.queue.next_look == pytest.approx(0.022)
    assert door.queue.pump(0.021) == door.end(first, 0.021) == []
    door.send(changed := door.queue.pump(0.022), 0.022)
    assert late in changed
    assert sum(ticket.state is State.GRANTED for ticket in [*crowd, late]) == 4
    assert late.waited_s == pytest.approx(late.predicted_wait_s)


def test_without_a_window_a_burst_is_served_as_it_comes() -> None:
    door = Door.of(places(2), engines=2, classes=ONE)
    tickets = [door.ask("a", 0.001 * at) for at in range(4)]
    assert states([*tickets, door.ask("b", 0.004)]) == ["granted"] * 4 + ["waiting"]


def test_who_would_miss_its_deadline_in_a_burst_is_not_held() -> None:
    door = Door.of(places(9), classes=ONE, smoothing_s=0.5)
    assert [door.ask("a", 0.0).state for _ in range(3)] == [State.GRANTED, State.WAITING, State.WAITING]
    assert door.ask("a", 0.0, deadline=0.4).state is State.GRANTED


def test_what_finds_no_room_at_the_end_of_a_burst_is_told_how_long_it_would_wait() -> None:
    rules = (ServiceClass("interactive", max_queue_wait_s=2.0),)
    door = Door.of(places(2), classes=rules, smoothing_s=0.02)
    running, other = door.ask("a", 0.0), door.ask("a", 0.1)
    for at in range(1, 4):  # the queue learns that one leaves each second
        waiting = door.ask("a", at - 0.9)
        door.end(running, float(at))
        running = waiting
    door.end(running, 4.0)
    door.end(other, 4.0)
    burst = [door.ask("a", 5.0 + 0.001 * at) for at in range(8)]
    assert {ticket.state for ticket in burst[1:]} == {State.WAITING}
    door.send(door.queue.pump(5.1), 5.1)
    refused = [ticket for ticket in burst if ticket.state is State.REFUSED]
    assert refused
    assert {ticket.refusal for ticket in refused} == {Refusal.WAIT}
    assert min(ticket.predicted_wait_s for ticket in refused) > 1.0


def test_nobody_is_turned_away_for_one_whom_no_endpoint_serves() -> None:
    door = Door.of(places(1), classes=(ServiceClass("interactive", max_queued=1),))
    door.ask("a", 0.0)
    waiting = door.ask("a", 0.1)
    stranger = door.ask("b", 0.2, model="?")
    assert (waiting.state, stranger.refusal) == (State.WAITING, Refusal.NOBODY)


def test_who_expires_is_told_what_it_would_wait_now() -> None:
    door = Door.of(places(1), classes=(ServiceClass("interactive", max_queue_wait_s=3.0),))
    running = door.ask("a", 0.0)
    for at in range(1, 3):
        waiting = door.ask("a", at - 0.5)
        door.end(running, float(at))
        running = waiting
    tickets = [door.ask("a", 2.0) for _ in range(2)]
    assert door.queue.pump(5.0) == tickets
    assert {ticket.refusal for ticket in tickets} == {Refusal.EXPIRED}
    assert tickets[0].predicted_wait_s > 0
