"""Tariff: what tokens count for and cost. Whole numbers, so that sums are exact."""

from dataclasses import dataclass
from typing import NamedTuple

MILLION = 1_000_000
NANO = 1_000_000_000  # of the money in which costs are counted, in one of it


class Amounts(NamedTuple):
    """What a request comes to."""

    requests: int
    tokens: int
    """Weighted."""
    cost: int
    """In 10^-9 of the operator's money."""


NOTHING = Amounts(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Tariff:
    """Of one tenant at one model."""

    cached_weight: int = MILLION
    """Of a cached prompt token, in millionths of an uncached one."""
    output_weight: int = MILLION
    input_price: int = 0
    """Of an uncached prompt token, in 10^-12 of the operator's money; so are the others."""
    cached_price: int = 0
    output_price: int = 0

    @classmethod
    def of(
        cls,
        *,
        cached_weight: float = 1.0,
        output_weight: float = 1.0,
        input_price: float = 0.0,
        cached_price: float = 0.0,
        output_price: float = 0.0,
    ) -> "Tariff":
        """Make it of weights as factors, and prices per million tokens."""
        factors = (cached_weight, output_weight, input_price, cached_price, output_price)
        return cls(*(round(factor * MILLION) for factor in factors))

    def weighted_tokens(self, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> int:
        """Count tokens as limits do, rounded up. The cached ones are a part of the prompt."""
        uncached = prompt_tokens - cached_tokens
        return -(
            -(uncached * MILLION + cached_tokens * self.cached_weight + output_tokens * self.output_weight) // MILLION
        )

    def cost_nanos(self, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> int:
        """Say what tokens cost, in 10^-9 of the operator's money, to the nearest."""
        uncached = prompt_tokens - cached_tokens
        picos = uncached * self.input_price + cached_tokens * self.cached_price + output_tokens * self.output_price
        return (picos + 500) // 1000

    def amounts(self, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> Amounts:
        """Add up one request."""
        tokens = self.weighted_tokens(prompt_tokens, cached_tokens, output_tokens)
        return Amounts(1, tokens, self.cost_nanos(prompt_tokens, cached_tokens, output_tokens))
