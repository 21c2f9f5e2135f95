"""GET /v1/models: what the fleet serves, told without asking any engine."""

import orjson

from gateway.errors import ModelNotFound
from gateway.fleet import Fleet
from gateway.routes import model_id_of
from gateway.tenants import Tenant


class ModelList:
    """Lists models in OpenAI's shape, with vLLM's `max_model_len` beside it where an engine tells."""

    def __init__(self, fleet: Fleet, created: int) -> None:
        self._fleet = fleet
        self._created = created

    def answer(self, path: str, tenant: Tenant) -> bytes:
        """Give the body for `/v1/models` or `/v1/models/{id}`, of what this tenant may use.

        Raises:
            ModelNotFound: the id is of no model, or of none that it may use.
        """
        known = {model: limit for model, limit in self._fleet.models().items() if tenant.may_use(model)}
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
