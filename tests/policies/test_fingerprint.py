"""Fingerprints: how much two prompts share, and nothing about what they say."""

from random import Random

import pytest

from policies.fingerprint import DEPTHS, MARK_CHARS, MOST_MARKS, Fingerprinter, marks_of
from policies.prefix import block_hashes, root_of
from policies.request import UNIT_TOKENS, BlockHash

PRINTS = Fingerprinter(b"key")


def chain(units: int, seed: int = 0) -> tuple[BlockHash, ...]:
    chance = Random(seed)
    return tuple(BlockHash(chance.getrandbits(64)) for _ in range(units))


def shared(one: str, other: str) -> int:
    """Give how many units two fingerprints say are shared."""
    pairs = zip(marks_of(one), marks_of(other), DEPTHS, strict=False)
    return max((depth for mine, theirs, depth in pairs if mine == theirs), default=0)


@pytest.mark.parametrize(
    ("tokens", "marks"), [(63, 0), (64, 1), (1024, 16), (8192, 64), (131_072, 128), (1 << 20, 176)]
)
def test_it_grows_with_the_logarithm_of_the_prompt(tokens: int, marks: int) -> None:
    assert len(PRINTS.of(chain(tokens // UNIT_TOKENS))) == marks * MARK_CHARS


def test_a_prompt_beyond_all_measure_is_cut() -> None:
    assert len(PRINTS.of(range(DEPTHS[-1] + 1000))) == MOST_MARKS * MARK_CHARS  # type: ignore[arg-type]  # no list of them


@pytest.mark.parametrize("units", [0, 1, 31, 32, 33, 63, 100, 128, 1000, 2047])
def test_what_two_prompts_share_is_a_16th_too_little_at_worst_and_never_too_much(units: int) -> None:
    head = chain(units)
    found = shared(PRINTS.of(head + chain(300, 1)), PRINTS.of(head + chain(300, 2)))
    assert units * 15 / 16 <= found <= units
    assert found == units or units > 32


def test_an_engines_blocks_of_512_tokens_are_found_exactly_up_to_16k() -> None:
    assert set(range(8, 257, 8)) <= set(DEPTHS)


def test_another_key_has_nothing_in_common() -> None:
    head = chain(50)
    assert shared(PRINTS.of(head), Fingerprinter(b"other").of(head)) == 0


def test_the_chain_itself_is_not_told() -> None:
    head = block_hashes(root_of("m"), bytes(64 * 4 * 5))
    told = set(marks_of(PRINTS.of(head)))
    assert not told & {link & ((1 << 48) - 1) for link in head}
    assert not told & {link >> 16 for link in head}


def test_the_same_prompt_has_the_same_fingerprint_in_every_process() -> None:
    assert Fingerprinter(b"key").of((BlockHash(1), BlockHash(2))) == "M6RKsroq8lk2064Y"


@pytest.mark.parametrize("text", ["AAAA", "AAAAAA==", "AAAAAA*A", "é" * 8, "AAAAAAAA" * (MOST_MARKS + 1)])
def test_what_is_no_fingerprint_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"fingerprint|padding|ASCII"):
        marks_of(text)


def test_nothing_is_known_of_an_empty_one() -> None:
    assert PRINTS.of(()) == ""
    assert marks_of("") == []
