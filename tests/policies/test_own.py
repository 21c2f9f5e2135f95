"""What a tenant has sent itself: never more than that, and little less."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from policies.own import OwnPrefixes
from policies.prefix import block_hashes, root_of
from policies.request import BlockHash

ROOT = root_of("m")


def chain(*units: str, root: BlockHash = ROOT) -> tuple[BlockHash, ...]:
    """Hash units of one byte's text each."""
    return block_hashes(root, b"".join(unit.encode() * 4 for unit in units), 1)


def test_a_tenant_knows_what_it_has_sent_and_not_what_others_have() -> None:
    own = OwnPrefixes(1)
    own.noted("a", chain(*"abcdef"))
    assert own.leading("a", chain(*"abcdef")) == 6
    assert own.leading("a", chain(*"abcxyz")) == 3
    assert own.leading("a", chain(*"abcdefghi")) == 6
    assert own.leading("b", chain(*"abcdef")) == 0
    own.noted("b", chain(*"abx"))
    assert own.leading("b", chain(*"abcdef")) == 2


def test_what_has_no_units_is_never_known() -> None:
    own = OwnPrefixes(1)
    own.noted("a", ())
    assert (own.leading("a", ()), len(own)) == (0, 0)


def test_other_roots_are_other_prompts() -> None:
    own = OwnPrefixes(1)
    own.noted("a", chain(*"abc"))
    assert own.leading("a", chain(*"abc", root=root_of("m", "", "salt"))) == 0


def test_memory_is_bounded_and_what_is_used_stays() -> None:
    """10,000 prompts of 8 units, 3 of them common to all, with 100 units a generation, and a prompt on top."""
    own = OwnPrefixes(1, most_units=100)
    for at in range(10_000):
        prompt = chain(*"sys", *f"{at:05}")
        assert own.leading("a", prompt) >= 3 or not at
        own.noted("a", prompt)
        assert len(own) <= 2 * (100 + 8)
    assert own.leading("a", chain(*"sys", *"00000")) < 8


def test_what_is_used_again_outlives_what_is_not() -> None:
    own = OwnPrefixes(1, most_units=10)
    own.noted("a", chain(*"used"))
    own.noted("a", chain(*"once"))
    for at in range(20):
        own.noted("a", chain(str(at % 10), *"xyz"[: at % 3]))
        own.noted("a", chain(*"used"))
    assert own.leading("a", chain(*"used")) == 4
    assert own.leading("a", chain(*"once")) == 0


PROMPTS = st.tuples(st.sampled_from("ab"), st.text("xyz", max_size=8))


@given(st.lists(PROMPTS, max_size=40), st.integers(1, 30), st.integers(0, 1 << 64).map(lambda seed: seed % (1 << 64)))
def test_never_more_than_was_sent_and_all_of_the_last(prompts: list[tuple[str, str]], most: int, seed: int) -> None:
    own = OwnPrefixes(seed, most_units=most)
    sent: dict[str, set[str]] = {"a": set(), "b": set()}
    for tenant, text in prompts:
        longest = max((len(_shared(text, other)) for other in sent[tenant]), default=0)
        assert own.leading(tenant, chain(*text)) <= longest
        own.noted(tenant, chain(*text))
        sent[tenant].add(text)
        assert own.leading(tenant, chain(*text)) == len(text)


def _shared(one: str, other: str) -> str:
    at = 0
    while at < min(len(one), len(other)) and one[at] == other[at]:
        at += 1
    return one[:at]


def test_all_is_known_while_all_has_room() -> None:
    """1,000 prompts of up to 40 units by 50 tenants, seed 3."""
    chance, own = Random(3), OwnPrefixes(9)
    sent = [
        (f"t{chance.randrange(50)}", chain(*("xyz"[chance.randrange(3)] for _ in range(chance.randrange(40)))))
        for _ in range(1000)
    ]
    for tenant, prompt in sent:
        own.noted(tenant, prompt)
    assert all(own.leading(tenant, prompt) == len(prompt) for tenant, prompt in sent)
