"""Models by the names that clients use: GET /v1/models, told without asking any engine, and aliases."""

from collections.abc import Mapping

import orjson

from gateway.errors import ModelNotFound
from gateway.fleet import Fleet
from gateway.routes import model_id_of
from gateway.tenants import Tenant


class Models:
    """Knows aliases; lists models in OpenAI's shape, with vLLM's `max_model_len` beside it where an engine tells.

    Args:
        aliases: Names that clients may use, each with the model's own.
        created: Unix seconds that the list shows.
    """

    def __init__(self, fleet: Fleet, aliases: Mapping[str, str], created: int) -> None:
        self._fleet = fleet
        self._aliases = dict(aliases)
        self._created = created

    def served_as(self, name: str) -> str:
        """Give the name by which engines know a model."""
        return self._aliases.get(name, name)

    def answer(self, path: str, tenant: Tenant) -> bytes:
        """Give the body for `/v1/models` or `/v1/models/{id}`, of what this tenant may use.

        Raises:
            ModelNotFound: the id is of no model, or of none that it may use.
        """
        served = self._fleet.models()
        named = {alias: model for alias, model in self._aliases.items() if model in served}
        names = dict.fromkeys(served) | named
        known = {
            name: served[model or name]
            for name, model in names.items()
            if tenant.may_use(name) or (model is not None and tenant.may_use(model))
        }
        wanted = model_id_of(path)
        if wanted is None:
            return orjson.dumps({"object": "list", "data": [self._entry(*item) for item in known.items()]})
        if wanted not in known:
            raise ModelNotFound(f"the model {wanted[:256]!r} does not exist here", param="model")
        return orjson.dumps(self._entry(wanted, known[wanted]))

    def _entry(self, model: str, limit: int | None) -> dict[str, object]:
        entry: dict[str, object] = {"id": model, "object": "model", "created": self._created, "owned_by": "kvlane"}
        if limit is not None:
            entry["max_model_len"] = limit
        return entry
