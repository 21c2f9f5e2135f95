"""Which endpoint holds which stored response, and whose it is."""

from gateway.homes import Homes
from policies.endpoint import Endpoint

HERE, THERE = Endpoint("here", "http://here"), Endpoint("there", "http://there")


def test_a_response_is_found_by_the_tenant_who_made_it() -> None:
    homes = Homes()
    homes.learn("resp_1", HERE, "a")
    assert homes.find("resp_1", "a") is HERE


def test_to_everybody_else_it_does_not_exist() -> None:
    homes = Homes()
    homes.learn("resp_1", HERE, "a")
    assert homes.find("resp_1", "b") is None


def test_what_nobody_made_is_nobodys() -> None:
    homes = Homes()
    assert homes.find("resp_1", "a") is None


def test_a_response_may_move() -> None:
    homes = Homes()
    homes.learn("resp_1", HERE, "a")
    homes.learn("resp_1", THERE, "a")
    assert homes.find("resp_1", "a") is THERE
    assert len(homes) == 1


def test_the_least_recently_used_is_forgotten_first() -> None:
    homes = Homes(most=3)
    for name in ("one", "two", "three"):
        homes.learn(name, HERE, "a")
    homes.find("one", "a")
    homes.learn("three", HERE, "a")
    homes.learn("four", HERE, "a")
    assert {name for name in ("one", "two", "three", "four") if homes.find(name, "a")} == {"one", "three", "four"}


def test_a_foreign_look_keeps_nothing_alive() -> None:
    homes = Homes(most=2)
    homes.learn("one", HERE, "a")
    homes.learn("two", HERE, "a")
    homes.find("one", "b")
    homes.learn("three", HERE, "a")
    assert homes.find("one", "a") is None


def test_a_million_responses_take_no_more_room_than_allowed() -> None:
    homes = Homes(most=1000)
    for at in range(100_000):
        homes.learn(f"resp_{at}", HERE, "a")
        assert len(homes) <= 1000


def test_a_response_stays_with_the_tenant_who_made_it_first() -> None:
    """Engines that let clients choose the id must not let one take over what is another's."""
    homes = Homes()
    homes.learn("resp_1", HERE, "a")
    homes.learn("resp_1", HERE, "b")
    assert homes.find("resp_1", "a") is HERE
    assert homes.find("resp_1", "b") is None
