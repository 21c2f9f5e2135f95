"""What is remembered of beginnings, and where texts may be cut."""

from array import array
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tokens.segments import ENTRY_BYTES, Cutter, Recent, Segments, cut_tokens
from policies.prefix import block_hashes, root_of

ROOT = root_of("m")


@dataclass(frozen=True)
class Token:
    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 2000)), max_size=200))
def test_what_is_kept_stays_within_its_bytes(puts: list[tuple[int, int]]) -> None:
    kept: Recent[int] = Recent(5000)
    for key, size in puts:
        kept.put(key, size, size)
        assert kept.held_bytes <= 5000
        assert (kept.get(key) == size) or (size + ENTRY_BYTES) * 4 > 5000


def test_the_least_recently_used_goes_first() -> None:
    kept: Recent[str] = Recent(4 * ENTRY_BYTES)
    for key in range(4):
        kept.put(key, str(key), 0)
    assert kept.get(0) == "0"
    kept.put(4, "4", 0)
    assert [kept.get(key) for key in range(5)] == ["0", None, "2", "3", "4"]
    assert len(kept) == 4


@pytest.mark.parametrize(
    ("tokens", "cuttable"),
    [
        ([Token("<a>"), Token("<b>")], ("<a>", "<b>")),
        ([Token("<a>"), Token("<a>x")], ("<a>x",)),  # the longer one wins where both stand
        ([Token("<a>"), Token("x<a")], ("x<a",)),  # can begin before the other and keep it from being found
        ([Token("<a>"), Token("<<")], ("<<",)),
        ([Token("<a>", lstrip=True), Token("<b>", rstrip=True)], ()),
        ([Token("<a>"), Token("b", single_word=True)], ()),
        ([Token(""), Token("<a>")], ("<a>",)),
    ],
)
def test_tokens_that_others_can_cover_are_not_cut_at(tokens: list[Token], cuttable: tuple[str, ...]) -> None:
    assert cut_tokens(tokens, [token.content for token in tokens]) == cuttable
    assert cut_tokens(tokens, []) == ()


@given(st.lists(st.sampled_from(["<a>", "<b>", "<a", "x", "\n", ""]), max_size=12).map("".join), st.integers(1, 2))
def test_pieces_joined_are_the_text_and_begin_with_tokens(text: str, tokens: int) -> None:
    cutter = Cutter(dict([("<a>", 1), ("<b>", 2)][:tokens]))
    pieces = cutter.cut(text)
    assert "".join(pieces) == text
    assert all(piece.startswith(cutter.tokens) for piece in pieces[1:])
    assert sum(text.count(token) for token in cutter.tokens) == sum(piece.startswith(cutter.tokens) for piece in pieces)


@given(st.lists(st.lists(st.integers(3, 9), max_size=4), min_size=1, max_size=6), st.booleans())
def test_ids_are_cut_where_the_text_is(parts: list[list[int]], begins: bool) -> None:
    pieces = [array("I", [1 + at % 2, *part]) for at, part in enumerate(parts)]
    if not begins:
        pieces.insert(0, array("I", [7]))
    whole = b"".join(piece.tobytes() for piece in pieces)
    assert Cutter({"<a>": 1, "<b>": 2}).cut_ids(whole, len(pieces)) == [piece.tobytes() for piece in pieces]


@given(
    st.lists(st.binary(max_size=40).map(lambda data: data[: len(data) // 4 * 4]), max_size=6), st.sampled_from([1, 3])
)
async def test_a_chain_is_that_of_all_its_ids(parts: list[bytes], unit_tokens: int) -> None:
    segments = Segments(3, max_ids_bytes=10_000, max_links_bytes=100_000)
    want = block_hashes(ROOT, b"".join(parts), unit_tokens)
    first, second = segments.start(ROOT, unit_tokens), segments.start(ROOT, unit_tokens)
    for part in parts:
        await first.extend(part, part)
        assert second.follow(part)
    assert tuple(first.hashes) == tuple(second.hashes) == want
    assert first.tokens == second.tokens == len(b"".join(parts)) // 4


async def test_nothing_is_followed_behind_another_beginning() -> None:
    segments = Segments(3, max_ids_bytes=10_000, max_links_bytes=100_000)
    for start in (segments.start(ROOT, 1), segments.start(root_of("n"), 1), segments.start(ROOT, 2)):
        assert not start.follow(b"aaaa")
        await start.extend(b"aaaa", b"aaaa")
        assert not start.follow(b"bbbb")
    behind = segments.start(ROOT, 1)
    behind.pass_over(b"pppp")
    assert not behind.follow(b"aaaa")


async def test_a_long_segment_is_hashed_in_slices_and_the_same() -> None:
    ids = array("I", range(10_000)).tobytes()
    chain = Segments(3, max_ids_bytes=1 << 20, max_links_bytes=1 << 20).start(ROOT, 1)
    await chain.extend(b"text", ids)
    assert tuple(chain.hashes) == block_hashes(ROOT, ids, 1)
