"""RingKeys: the longest beginning that was seen before, and no more memory than allowed."""

from policies.keys import RingKeys
from policies.request import BlockHash

SYSTEM, ONE, OTHER = BlockHash(1), BlockHash(10), BlockHash(20)


def test_a_conversation_goes_by_its_opening_from_the_second_turn_on() -> None:
    keys = RingKeys()
    assert [keys.key_of(SYSTEM, ONE) for _ in range(3)] == [SYSTEM, ONE, ONE]


def test_requests_that_come_once_go_by_their_system_prompt() -> None:
    keys = RingKeys()
    assert [keys.key_of(SYSTEM, BlockHash(each)) for each in range(2, 6)] == [SYSTEM] * 4


def test_without_a_system_prompt_the_opening_is_the_key_at_once() -> None:
    assert RingKeys().key_of(None, ONE) == ONE


def test_without_an_opening_the_system_prompt_is_the_key_and_nothing_is_remembered() -> None:
    keys = RingKeys()
    assert [keys.key_of(SYSTEM, None), keys.key_of(None, None)] == [SYSTEM, None]
    assert len(keys) == 0


def test_the_opening_asked_about_longest_ago_is_forgotten_first() -> None:
    keys = RingKeys(most=2)
    for opening in (ONE, OTHER, ONE, BlockHash(30)):
        keys.key_of(SYSTEM, opening)
    assert len(keys) == 2
    assert [keys.key_of(SYSTEM, ONE), keys.key_of(SYSTEM, OTHER)] == [ONE, SYSTEM]
