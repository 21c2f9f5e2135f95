"""ring_key: conversations by their opening, single requests by what they share."""

import pytest

from policies.keys import ring_key
from policies.request import BlockHash

SYSTEM, OPENING = BlockHash(1), BlockHash(2)


@pytest.mark.parametrize(
    ("system", "opening", "is_answered", "expected"),
    [
        (SYSTEM, OPENING, False, SYSTEM),
        (SYSTEM, OPENING, True, OPENING),
        (None, OPENING, False, OPENING),
        (None, OPENING, True, OPENING),
        (SYSTEM, None, True, SYSTEM),
        (None, None, False, None),
    ],
)
def test_the_opening_is_the_key_once_it_is_answered_or_all_there_is(
    system: BlockHash | None, opening: BlockHash | None, is_answered: bool, expected: BlockHash | None
) -> None:
    assert ring_key(system, opening, is_answered=is_answered) == expected
