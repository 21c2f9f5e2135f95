"""What tokens count for and cost: a tenant's weights and a model's prices, as a Tariff."""

from collections.abc import Iterable

from gateway.config import ModelConfig
from gateway.tenancy import PricesConfig, TokenWeightsConfig
from gateway.tenants import Tenants
from policies.tariff import Tariff

EQUAL_WEIGHTS, NO_PRICES = TokenWeightsConfig(), PricesConfig(input=0, output=0)


class Tariffs:
    """The tariff of each tenant at each model, as things stand."""

    def __init__(self, tenants: Tenants, models: Iterable[ModelConfig]) -> None:
        self._tenants = tenants
        self._prices = {model.name: model.prices for model in models if model.prices is not None}

    def of(self, tenant: str, model: str) -> Tariff:
        """Give it; a tenant that is gone has equal weights."""
        known = self._tenants.named(tenant)
        weights = EQUAL_WEIGHTS if known is None else known.token_weights
        prices = self._prices.get(model, NO_PRICES)
        return Tariff.of(
            cached_weight=weights.cached,
            output_weight=weights.output,
            input_price=prices.input,
            cached_price=prices.input if prices.cached is None else prices.cached,
            output_price=prices.output,
        )
