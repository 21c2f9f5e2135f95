"""Chains of hashes: same prefix, same hash, in every process; anything else, another."""

import subprocess
import sys
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.prefix import block_hashes, media_ids, root_of, text_hashes

IDS = array("I", range(1000, 1400))
ROOT = root_of("m")
IN_ANOTHER_PROCESS = """
from array import array
from policies.prefix import block_hashes, root_of
print(block_hashes(root_of("m", "lora", "salt"), array("I", range(200)))[-1])
"""


def test_only_full_units_have_a_hash() -> None:
    assert [len(block_hashes(ROOT, IDS[:count])) for count in (0, 63, 64, 127, 128, 400)] == [0, 0, 1, 1, 2, 6]
    assert len(block_hashes(ROOT, IDS, 16)) == 25


@given(st.lists(st.integers(0, 200_000), max_size=300), st.lists(st.integers(0, 200_000), max_size=300))
def test_prompts_share_as_many_hashes_as_full_units(one: list[int], other: list[int]) -> None:
    same = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    left, right = (block_hashes(ROOT, array("I", ids), 16) for ids in (one, other))
    shared = next(
        (at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right))
    )
    assert shared == same // 16


def test_r18_the_same_tail_behind_another_head_is_no_match() -> None:
    one, other = block_hashes(ROOT, array("I", [1]) + IDS[1:]), block_hashes(ROOT, array("I", [2]) + IDS[1:])
    assert not set(one) & set(other)


def test_a_chain_goes_on_from_the_last_hash_of_a_segment() -> None:
    head = block_hashes(ROOT, IDS[:128])
    assert head + block_hashes(head[-1], IDS[128:]) == block_hashes(ROOT, IDS)


def test_bytes_are_ids_laid_out_little_endian() -> None:
    data = b"".join(id.to_bytes(4, "little") for id in IDS)
    assert block_hashes(ROOT, data) == block_hashes(ROOT, IDS)


def test_a_big_endian_machine_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    there = IDS[:]
    there.byteswap()  # what the same ids look like in memory there
    here = block_hashes(ROOT, IDS)
    monkeypatch.setattr(sys, "byteorder", "big")
    assert block_hashes(ROOT, there) == here


def test_ids_of_another_width_are_refused() -> None:
    with pytest.raises(ValueError, match="these are 8"):
        block_hashes(ROOT, array("Q", IDS))


def test_another_process_finds_the_same_hash() -> None:
    told = subprocess.run([sys.executable, "-c", IN_ANOTHER_PROCESS], capture_output=True, text=True, check=True)
    assert int(told.stdout) == block_hashes(root_of("m", "lora", "salt"), array("I", range(200)))[-1]


def test_model_adapter_and_salt_keep_caches_apart() -> None:
    roots = [
        root_of("m"),
        root_of("n"),
        root_of("m", "a"),
        root_of("m", "", "a"),
        root_of("ma"),
        root_of("m", "a", "b"),
    ]
    assert len(set(roots)) == len(roots)
    assert root_of("m", "\ud800") != ROOT  # what a client may put into JSON


def test_text_is_hashed_in_chunks_of_256_bytes() -> None:
    one, other = text_hashes(ROOT, b"a" * 700), text_hashes(ROOT, b"a" * 300 + b"b" * 400)
    assert len(one) == len(other) == 2
    assert one[0] == other[0]
    assert one[1] != other[1]


def test_media_ids_go_by_content_and_lie_above_every_vocabulary() -> None:
    cat, dog = media_ids(b"cat", 577), media_ids(b"dog", 577)
    assert (len(cat), len(media_ids(b"cat", 1)), len(media_ids(b"cat", 0))) == (577, 1, 0)
    assert cat == media_ids(b"cat", 577)
    assert min(cat) >= 1 << 31
    assert block_hashes(ROOT, cat)[0] != block_hashes(ROOT, dog)[0]
