"""HotPrefixes: the beginnings that many prompts share, told exactly and once."""

from policies.hot import FADE_S, MAX_UNITS, HotPrefixes
from policies.request import BlockHash


def chain(*words: str) -> tuple[BlockHash, ...]:
    """Make a chain of hashes: each stands for all words up to it."""
    return tuple(BlockHash(hash(words[: at + 1])) for at in range(len(words)))


def units(name: str, count: int) -> tuple[str, ...]:
    return tuple(f"{name}{at}" for at in range(count))


SYSTEM = units("s", 15)


def told(hot: HotPrefixes, now: float = 0.0) -> list[tuple[int, float, str]]:
    return [(each.units, round(each.prompts, 2), each.label) for each in hot.top(10, now)]


def test_a_system_prompt_is_found_to_the_unit_and_told_once() -> None:
    hot = HotPrefixes()
    for at in range(4):
        hot.note(chain(*SYSTEM, *units(f"question {at}", 7)), "m", 0.0)
    assert told(hot) == [(15, 4, "m")]
    assert hot.top(1, 0.0)[0].last == chain(*SYSTEM)[-1]


def test_a_conversation_under_it_is_told_beside_it() -> None:
    hot = HotPrefixes()
    for at in range(4):
        hot.note(chain(*SYSTEM, *units(f"question {at}", 7)), "m", 0.0)
    talk = (*SYSTEM, *units("talk", 31))
    for turn in range(3):
        hot.note(chain(*talk, *units(f"turn {turn}", 4)), "m", 0.0)
    assert told(hot) == [(46, 3, "m"), (15, 7, "m")]


def test_one_that_parts_early_does_not_spoil_what_others_share() -> None:
    hot = HotPrefixes()
    hot.note(chain(*SYSTEM, "a"), "m", 0.0)
    hot.note(chain(*SYSTEM, "b"), "m", 0.0)
    hot.note(chain(*SYSTEM[:3], *units("other", 20)), "m", 0.0)
    assert told(hot) == [(15, 2, "m"), (3, 3, "m")]


def test_a_prompt_that_ends_within_it_is_shared_as_far_as_it_goes() -> None:
    hot = HotPrefixes()
    hot.note(chain(*SYSTEM), "m", 0.0)
    hot.note(chain(*SYSTEM[:6]), "n", 0.0)
    assert told(hot) == [(6, 2, "n")]


def test_prompts_that_share_nothing_are_not_told() -> None:
    hot = HotPrefixes()
    hot.note((), "m", 0.0)
    hot.note(chain("a"), "m", 0.0)
    hot.note(chain("b"), "m", 0.0)
    assert told(hot) == []


def test_what_no_longer_comes_fades() -> None:
    hot = HotPrefixes()
    for _ in range(4):
        hot.note(chain(*SYSTEM), "m", 0.0)
    assert told(hot, FADE_S / 2) == [(15, round(4 * 0.60653, 2), "m")]
    assert told(hot, FADE_S) == []


def test_memory_is_bounded_and_the_least_is_forgotten() -> None:
    hot = HotPrefixes(max_nodes=8)
    for _ in range(3):
        hot.note(chain("kept", "kept"), "m", 0.0)
    for at in range(100):
        hot.note(chain(f"once {at}"), "m", 0.0)
    assert told(hot) == [(2, 3, "m")]
    assert int(repr(hot).split()[1]) <= 8


def test_of_a_long_prompt_only_the_beginning_is_kept() -> None:
    hot = HotPrefixes()
    long = tuple(BlockHash(at) for at in range(1, 3 * MAX_UNITS))
    hot.note(long, "m", 0.0)
    hot.note(long, "m", 0.0)
    assert told(hot) == [(MAX_UNITS, 2, "m")]
