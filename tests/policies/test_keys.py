"""RingKeys: the longest beginning that more than one request has been seen with."""

from policies.keys import RingKeys
from policies.request import BlockHash

SYSTEM, OPENING, OTHER = BlockHash(1), BlockHash(2), BlockHash(3)


def test_a_conversation_goes_by_its_system_prompt_first_and_by_its_own_opening_from_then_on() -> None:
    keys = RingKeys()
    assert keys.key_of(SYSTEM, OPENING) == SYSTEM
    assert keys.key_of(SYSTEM, OTHER) == SYSTEM
    assert keys.key_of(SYSTEM, OPENING) == OPENING


def test_what_has_only_one_of_the_two_goes_by_that() -> None:
    keys = RingKeys()
    assert keys.key_of(None, OPENING) == OPENING
    assert keys.key_of(SYSTEM, None) == SYSTEM
    assert keys.key_of(None, None) is None


def test_the_opening_seen_longest_ago_is_forgotten_first() -> None:
    keys = RingKeys(most=2)
    for opening in (OPENING, OTHER, OPENING, BlockHash(4)):
        keys.key_of(SYSTEM, opening)
    assert keys.key_of(SYSTEM, OPENING) == OPENING
    assert keys.key_of(SYSTEM, OTHER) == SYSTEM
