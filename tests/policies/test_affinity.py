"""Ring, ConsistentHash, BoundedLoad: stable homes, evenly dealt, and spill in a stable order."""

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from policies import books, ring
from policies.affinity import BOUND, BoundedLoad, ConsistentHash, ring_key_of
from policies.endpoint import Charge
from policies.policy import Policy, Reason
from policies.request import BlockHash
from policies.ring import Ring
from tests.policies.fleets import REQUEST, endpoints, request

NAMES = [f"e{at}" for at in range(8)]


def key(at: int) -> int:
    return xxh3_64_intdigest(b"%d" % at)


def test_r15_ten_thousand_keys_are_dealt_evenly() -> None:
    """N = 8 endpoints of fixed names, R = 10,000 keys: the busiest at most 1.15 of the mean."""
    at = Ring()
    dealt = Counter(next(at.homes(key(each), NAMES)) for each in range(10_000))
    assert max(dealt.values()) <= 1.15 * 10_000 / 8, dealt


@given(st.integers(0, (1 << 64) - 1))
def test_homes_are_every_name_once_and_two_rings_agree(where: int) -> None:
    homes = list(Ring().homes(where, NAMES[:3]))
    assert sorted(homes) == NAMES[:3]
    assert homes == list(Ring().homes(where, NAMES[2::-1]))


def test_who_leaves_takes_only_its_own_keys_along() -> None:
    at = Ring()
    before = {each: list(at.homes(key(each), NAMES)) for each in range(500)}
    fresh = Ring()
    for each, homes in before.items():
        left = [name for name in homes if name != "e0"]
        assert list(at.homes(key(each), NAMES[1:])) == list(fresh.homes(key(each), NAMES[1:])) == left


def test_names_that_are_gone_leave_the_ring() -> None:
    at = Ring()
    for turn in range(ring.MAX_NAMES // 256 + 2):
        list(at.homes(key(0), [f"pod-{turn}-{each}" for each in range(256)]))
    assert len(at._points_of) <= ring.MAX_NAMES + 256


def test_the_key_is_what_requests_share_else_their_own() -> None:
    asked = request("r", (1, 3))
    assert ring_key_of(asked._replace(ring_key=BlockHash(7))) == 7
    assert ring_key_of(asked._replace(ring_key=None)) == asked.prefix[0]
    assert ring_key_of(REQUEST) != ring_key_of(REQUEST._replace(id="other"))


def concurrent(policy: Policy, count: int, each: int = 4) -> list[str]:
    """Send `count` requests of one key at once; give the names chosen, in order."""
    fleet = endpoints(each)
    chosen = []
    for at in range(count):
        asked = request(f"r{at}", (1, 64))
        choice = policy.choose(asked, fleet, 0.0)
        books.dispatch(choice.endpoint, asked, 0.0)
        chosen.append(choice.endpoint.name)
    return chosen


def test_r9_consistent_hash_never_spills() -> None:
    assert len(set(concurrent(ConsistentHash(), 100))) == 1


def test_r9_bounded_load_spills_beyond_its_bound_to_the_next_homes() -> None:
    """N = 4 and 8 endpoints, R = 100 of one key at once: nobody is ever over the bound by more than the one."""
    for count in (4, 8):
        chosen = Counter(concurrent(BoundedLoad(), 100, count))
        assert max(chosen.values()) <= BOUND * 100 / count + 1
    assert concurrent(BoundedLoad(), 100) == concurrent(BoundedLoad(), 100)


def test_bounded_load_says_when_a_request_is_not_at_home() -> None:
    fleet, policy, asked = endpoints(4), BoundedLoad(), request("r", (1, 64))
    home = policy.choose(asked, fleet, 0.0)
    assert home.reason is Reason.HOME
    for _ in range(3):
        books.dispatch(home.endpoint, asked, 0.0)
    away = policy.choose(asked, fleet, 0.0)
    assert away.reason is Reason.SPILL
    assert away.endpoint is not home.endpoint


@given(st.lists(st.integers(0, 20), min_size=1, max_size=8), st.integers(0, 1000))
def test_bounded_load_always_finds_room(counts: list[int], seed: int) -> None:
    fleet, chance = endpoints(len(counts)), Random(seed)
    charges: list[Charge] = [
        books.dispatch(endpoint, REQUEST, 0.0)
        for endpoint, count in zip(fleet, counts, strict=True)
        for _ in range(count)
    ]
    chosen = BoundedLoad().choose(REQUEST._replace(id=str(chance.random())), fleet, 0.0).endpoint
    assert chosen.outstanding.requests <= BOUND * (len(charges) + 1) / len(fleet)
