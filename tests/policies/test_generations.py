"""What is in use is kept; what nobody asks for is forgotten, and memory is bounded."""

from policies.generations import Generations


def test_what_is_asked_for_outlives_what_is_not() -> None:
    kept = Generations[str](4)
    kept.put(0, "used")
    for at in range(1, 100):
        kept.put(at, "once")
        assert kept.get(0) == "used"
        assert len(kept) <= 8
    assert kept.get(1) is None
