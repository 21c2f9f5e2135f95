"""OwnPrefixes: how much of a prompt its tenant has sent before, so that it is shown no more of what engines hold.

That a prefix is cached tells that somebody has sent it. Whoever is told what was predicted could ask for others'
prompts, word by word; so a tenant is told the least of what is predicted and what it has sent itself.

A chain's hash stands for all units before it: who has sent a unit has sent those, and the last that is known is found
by halving. Units are kept by hash and tenant together, in two generations: the young one takes what is sent, and when
it is full it takes the place of the old one, which is forgotten. A tenant that is forgotten is shown less than it could
be, no more. Within a generation a unit is never without those before it: what is sent is added from the first on that
the young one lacks.
"""

from collections.abc import Container, Sequence

from xxhash import xxh3_64_intdigest

from policies.request import BlockHash

UNITS = 1 << 17  # of a generation, some 10 MB; 8 million tokens in units of 64


class OwnPrefixes:
    """What each tenant has sent.

    Args:
        seed: Keeps tenants apart; nobody should be able to guess it.
        most_units: Of one generation.
    """

    def __init__(self, seed: int, most_units: int = UNITS) -> None:
        self._seed = seed
        self._most_units = most_units
        self._young: set[int] = set()
        self._old: set[int] = set()

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def leading(self, tenant: str, chain: Sequence[BlockHash]) -> int:
        """Count the leading units that a tenant has sent before."""
        seed = self._seed_of(tenant)
        units = _leading(self._young, seed, chain, 0)
        return _leading(self._old, seed, chain, units) if self._old else units

    def noted(self, tenant: str, chain: Sequence[BlockHash]) -> int:
        """Count the leading units that a tenant has sent before, and note all.

        Only of what an engine has got: what was refused is not in any cache on its account.
        """
        seed = self._seed_of(tenant)
        young = self._young
        known = units = _leading(young, seed, chain, 0)
        if self._old:
            units = _leading(self._old, seed, chain, known)
        if known < len(chain):
            young.update([unit ^ seed for unit in chain[known:]])
            if len(young) > self._most_units:
                self._old, self._young = young, set()
        return units

    def _seed_of(self, tenant: str) -> int:
        return xxh3_64_intdigest(tenant.encode("utf-8", "surrogatepass"), self._seed)


def _leading(units: Container[int], seed: int, chain: Sequence[BlockHash], known: int) -> int:
    """Count the leading units of a chain in a generation, of which `known` need not be looked at."""
    low, high = known, len(chain)
    if low < high and chain[-1] ^ seed in units:  # all of it
        return high
    while low < high:
        middle = (low + high) // 2
        if chain[middle] ^ seed in units:
            low = middle + 1
        else:
            high = middle
    return low
