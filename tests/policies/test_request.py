"""Units: a multiple of every engine's block, and not too fine."""

import pytest

from policies.request import unit_for


@pytest.mark.parametrize(
    ("blocks", "unit"),
    [
        ((), 64),
        ((1,), 64),
        ((16,), 64),
        ((32, 16), 64),
        ((128,), 128),
        ((16, 256), 256),
        ((48,), 96),
        ((48, 32), 96),
        ((10**9, 16), 64),
        ((0,), 64),
        ((2047, 2048), 2048),
    ],
)
def test_a_unit_is_a_multiple_of_every_block_and_at_least_64(blocks: tuple[int, ...], unit: int) -> None:
    assert unit_for(blocks) == unit
