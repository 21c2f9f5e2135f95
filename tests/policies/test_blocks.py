"""EngineBlocks: it says held what a plain model of the engine's cache says, unit by unit, in the order of chains."""

from array import array
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.blocks import MAX_COPIES, MIN_TOLD, Change, EngineBlocks, Unmapped
from policies.events import Cleared, Event, Removed, Stored
from policies.prefix import block_hashes, root_of
from policies.request import BlockHash

ROOT = root_of("m")
Prompt = tuple[int, ...]  # a letter a block

PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=8).map(tuple)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["store"] * 5 + ["remove"] * 4 + ["clear"]),
        PROMPTS,
        st.integers(0, 8),
        st.sampled_from(["", "", "CPU", "TAPE"]),
    ),
    max_size=60,
)
SIZES = st.sampled_from([(1, 4), (2, 8), (4, 4), (8, 4), (3, 6)])


def root(adapter: str, salt: str) -> BlockHash | None:
    return None if adapter == "unknown" else root_of("m", adapter, salt)


def name(prompt: Prompt) -> int:
    """Give the engine's name of a prompt's last block: signed, like SGLang's."""
    return hash(prompt)


def tokens(prompt: Prompt, size: int) -> "array[int]":
    return array("I", [letter * 1000 + at for letter in prompt for at in range(size)])


def stored(prompt: Prompt, first: int = 0, size: int = 16) -> Stored:
    """Tell that a prompt's blocks from `first` on are stored."""
    names = [name(prompt[:end]) for end in range(first + 1, len(prompt) + 1)]
    return Stored(names, name(prompt[:first]) if first else None, tokens(prompt[first:], size), size)


def chain(prompt: Prompt, size: int, unit: int, start: BlockHash = ROOT) -> tuple[BlockHash, ...]:
    return block_hashes(start, tokens(prompt, size), unit)


class Naive:
    """The cache as the engine has it: copies of every prefix of whole blocks, by medium."""

    def __init__(self) -> None:
        self.copies: Counter[tuple[Prompt, str]] = Counter()

    def knows(self, prompt: Prompt) -> bool:
        """Whether a block is stored, or one behind it is, which was told of while it was."""
        return not prompt or any(count and held[: len(prompt)] == prompt for (held, _), count in self.copies.items())

    def store(self, prompt: Prompt, first: int, medium: str) -> None:
        if self.knows(prompt[:first]):
            for end in range(first + 1, len(prompt) + 1):
                self.copies[prompt[:end], medium] = 1 if medium else self.copies[prompt[:end], medium] + 1

    def remove(self, prompt: Prompt, medium: str) -> None:
        self.copies[prompt, medium] = max(0, self.copies[prompt, medium] - 1)

    def is_stored(self, prompt: Prompt) -> bool:
        return any(count and held == prompt for (held, _), count in self.copies.items())

    def units(self, size: int, unit: int) -> set[BlockHash]:
        """Give the units that a prompt can hit: those of stored blocks with all before them stored."""
        found: set[BlockHash] = set()
        for prompt in {held for held, _ in self.copies}:
            if all(self.is_stored(prompt[:end]) for end in range(1, len(prompt) + 1)):
                found.update(chain(prompt, size, unit))
        return found


@given(STEPS, SIZES)
def test_what_is_held_is_what_a_plain_model_of_the_cache_says(
    steps: list[tuple[str, Prompt, int, str]], sizes: tuple[int, int]
) -> None:
    size, unit = sizes
    blocks, naive = EngineBlocks(unit, root), Naive()
    held: set[BlockHash] = set()
    before: dict[BlockHash, BlockHash] = {}
    for step, prompt, at, medium in steps:
        event: Event
        if step == "store":
            first = min(at, len(prompt) - 1)
            event = stored(prompt, first, size)._replace(medium=medium)
            naive.store(prompt, first, medium)
            links = (ROOT, *chain(prompt, size, unit))
            before |= dict(zip(links[1:], links, strict=False))
        elif step == "remove":
            event = Removed([name(prompt)], medium)
            naive.remove(prompt, medium)
        else:
            event = Cleared()
            naive.copies.clear()
        gone, runs = blocks.apply(event)
        assert held.issuperset(gone)
        assert len(set(gone)) == len(gone)
        held -= set(gone)
        for run in runs:
            assert run
            for link in run:
                assert before[link] == ROOT or before[link] in held
                assert link not in held
                held.add(link)
        assert held == naive.units(size, unit)
        assert sorted(link for run in blocks.held() for link in run) == sorted(held)
        naive.copies = +naive.copies
        assert len(blocks) == len({prompt[:end] for prompt, _ in naive.copies for end in range(1, len(prompt) + 1)})


@pytest.mark.parametrize(("size", "unit"), [(1, 64), (16, 64), (32, 64), (64, 64), (128, 64), (256, 64), (128, 256)])
def test_a_prompts_own_chain_is_held(size: int, unit: int) -> None:
    prompt = tuple(range(1, 1 + 1024 // size))
    blocks = EngineBlocks(unit, root)
    half = len(prompt) // 2
    first = blocks.apply(stored(prompt[:half], size=size))
    second = blocks.apply(stored(prompt, half, size))
    whole = chain(prompt, size, unit)
    assert [first, second] == [Change((), [whole[: len(whole) // 2]]), Change((), [whole[len(whole) // 2 :]])]
    assert repr(blocks) == f"<EngineBlocks {1024 // size} of {size} tokens, {1024 // size} in reach>"


def test_a_unit_goes_with_any_of_its_blocks_and_takes_all_behind_it_along() -> None:
    prompt = tuple(range(12))
    blocks = EngineBlocks(64, root)
    blocks.apply(stored(prompt))
    units = chain(prompt, 16, 64)
    assert blocks.apply(Removed([name(prompt[:6])])) == Change(units[1:])
    assert blocks.apply(Removed([name(prompt[:6])])) == Change()
    assert blocks.apply(stored(prompt[:6], 5)) == Change((), [units[1:]])


def test_two_chains_may_part_in_the_middle_of_a_unit() -> None:
    one, other = (1, 2, 3, 4), (1, 2, 3, 5)
    blocks = EngineBlocks(64, root)
    blocks.apply(stored(one))
    assert blocks.apply(stored(other, 3)) == Change((), [chain(other, 16, 64)])
    assert blocks.apply(Removed([name(one)])) == Change(chain(one, 16, 64))
    assert list(blocks.held()) == [chain(other, 16, 64)]


def test_siblings_go_in_any_order() -> None:
    for first, second, third in ((1, 2, 3), (2, 3, 1), (3, 1, 2)):
        blocks = EngineBlocks(16, root)
        for letter in (1, 2, 3):
            blocks.apply(stored((letter,)))
        for letter in (first, second):
            assert blocks.apply(Removed([name((letter,))])) == Change(chain((letter,), 16, 16))
        assert list(blocks.held()) == [chain((third,), 16, 16)]


def test_what_hangs_from_a_block_that_comes_back_comes_back_chain_by_chain() -> None:
    blocks = EngineBlocks(16, root)
    for event in (stored((1, 2, 3, 4)), stored((1, 2, 5), 2), stored((1, 6), 1)):
        blocks.apply(event)
    one, two, three, four = chain((1, 2, 3, 4), 16, 16)
    five, six = chain((1, 2, 5), 16, 16)[-1], chain((1, 6), 16, 16)[-1]
    assert blocks.apply(Removed([name((1, 2, 3))])) == Change((three, four))
    assert blocks.apply(Removed([name((1,))])) == Change((one, two, five, six))
    assert blocks.apply(stored((1,))) == Change((), [(one,), (two, five), (six,)])
    assert blocks.apply(stored((1, 2, 3), 2)) == Change((), [(three,), (four,)])


def test_a_block_with_two_copies_is_there_until_both_are_gone() -> None:
    prompt = (1, 2, 3, 4)
    for counts, left in ((True, [chain(prompt, 16, 64)]), (False, [])):
        blocks = EngineBlocks(64, root, counts_copies=counts)
        blocks.apply(stored(prompt))
        blocks.apply(stored(prompt, 3))
        blocks.apply(Removed([name(prompt)]))
        assert list(blocks.held()) == left


def test_copies_are_counted_within_bounds() -> None:
    blocks = EngineBlocks(16, root)
    for _ in range(MAX_COPIES + 10):
        blocks.apply(stored((1,)))
    blocks.apply(Removed([name((1,))] * MAX_COPIES))
    assert len(blocks) == 0


def test_adapters_and_salts_have_chains_of_their_own() -> None:
    blocks = EngineBlocks(16, root)
    for adapter, salt in (("", ""), ("lora", ""), ("", "s"), ("lora", "s")):
        event = stored((1,))._replace(adapter=adapter, salt=salt)._replace(hashes=[name((1, len(adapter), len(salt)))])
        start = root_of("m", adapter, salt)
        assert blocks.apply(event) == Change((), [chain((1,), 16, 16, start)])


@pytest.mark.parametrize("adapter", ["unknown", None])
def test_a_chain_of_an_adapter_that_is_not_known_is_not_mapped(adapter: str | None) -> None:
    blocks = EngineBlocks(16, root)
    assert blocks.apply(stored((1, 2))._replace(adapter=adapter)) == Change()
    assert blocks.unmapped == {Unmapped.ROOT: 2}


def test_a_chain_stops_where_media_begin() -> None:
    blocks = EngineBlocks(16, root)
    assert blocks.apply(stored((1, 2, 3, 4))._replace(mapped=2)) == Change((), [chain((1, 2), 16, 16)])
    assert blocks.apply(stored((1, 2, 3, 4, 5), 4)) == Change()
    assert blocks.unmapped == {Unmapped.CONTENT: 2, Unmapped.ORPHAN: 1}


def test_what_began_before_we_listened_is_ignored() -> None:
    blocks = EngineBlocks(16, root)
    assert blocks.apply(stored((1, 2, 3), 1)) == Change()
    assert blocks.apply(Removed([name((1, 2))])) == Change()
    assert blocks.unmapped == {Unmapped.ORPHAN: 2}


def test_only_the_first_group_of_layers_is_followed() -> None:
    blocks = EngineBlocks(16, root)
    blocks.apply(stored((1,))._replace(group=2))
    assert blocks.apply(stored((2,))._replace(group=1)) == Change()
    assert blocks.apply(Removed([name((1,))], group=1)) == Change()
    assert blocks.apply(Removed([name((1,))], group=2)) == Change(chain((1,), 16, 16))


def test_partial_blocks_are_not_mapped_even_when_they_come_first() -> None:
    blocks = EngineBlocks(16, root)
    partial = stored((9,), size=8)
    assert not any(blocks.apply(partial))
    assert blocks.apply(stored((1,), size=16)) == Change((), [chain((1,), 16, 16)])
    assert blocks.apply(partial) == Change()
    assert blocks.block_tokens == 16


def test_larger_blocks_than_before_begin_anew() -> None:
    blocks = EngineBlocks(16, root)
    blocks.apply(stored((1,), size=16))
    assert blocks.apply(stored((1,), size=32)) == Change(chain((1,), 16, 16), [chain((1,), 32, 16)])


@pytest.mark.parametrize(
    "event",
    [
        stored((1, 2), size=24),
        Stored([], None, array("I"), 16),
        Stored([1], None, array("I"), 16),
        Stored([1], None, array("I"), 0),
    ],
)
def test_what_does_not_fit_is_not_mapped(event: Stored) -> None:
    blocks = EngineBlocks(16, root)
    assert blocks.apply(event) == Change()
    assert len(blocks) == 0


def test_blocks_beyond_the_bound_are_not_mapped() -> None:
    blocks = EngineBlocks(16, root, max_blocks=3)
    assert blocks.apply(stored((1, 2, 3, 4, 5))) == Change((), [chain((1, 2, 3), 16, 16)])
    assert blocks.unmapped == {Unmapped.FULL: 2}
    blocks.apply(Removed([name((1, 2, 3))]))
    assert blocks.apply(stored((7,))) == Change((), [chain((7,), 16, 16)])


def test_events_tell_the_truth_unless_much_of_them_cannot_be_mapped() -> None:
    blocks = EngineBlocks(16, root)
    blocks.apply(stored(tuple(range(MIN_TOLD - 1)))._replace(mapped=0))
    assert blocks.is_telling
    blocks.apply(stored((1,))._replace(adapter=None))
    assert not blocks.is_telling
    blocks.clear()
    blocks.apply(stored(tuple(range(100)))._replace(mapped=90))
    assert blocks.is_telling
    blocks.apply(stored((1,))._replace(adapter=None))
    assert not blocks.is_telling


def test_a_block_that_was_moved_to_another_medium_is_there_until_that_lets_it_go() -> None:
    blocks = EngineBlocks(16, root)
    blocks.apply(stored((1,)))
    blocks.apply(stored((1,))._replace(medium="CPU"))
    blocks.apply(Removed([name((1,))]))
    assert len(blocks) == 1
    blocks.apply(Removed([name((1,))], "CPU"))
    assert len(blocks) == 0
