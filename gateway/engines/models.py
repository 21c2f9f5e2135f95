"""OpenAI's list of models, as most engines serve it at /v1/models, each with additions of its own."""

from collections.abc import Iterator, Mapping

from gateway.engines import figures
from gateway.engines.adapter import Page, ServedModel

LIST_PATH = "/v1/models"


def listed(pages: Mapping[str, Page]) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Walk the entries of the list that have an id: (id, entry)."""
    page = pages.get(LIST_PATH)
    if page is None:
        return
    for entry in figures.entries(figures.fields(page.parse_json()).get("data")):
        model = figures.fields(entry)
        name = figures.text(model.get("id"))
        if name is not None:
            yield name, model


def read_list(pages: Mapping[str, Page], max_context_tokens: int | None = None) -> tuple[ServedModel, ...]:
    """Read the list where limits are in `max_model_len`, as vLLM began and SGLang took over.

    Args:
        pages: What the engine answered.
        max_context_tokens: The limit of entries that tell none.
    """
    return tuple(
        ServedModel(
            name,
            figures.whole(model.get("max_model_len")) or max_context_tokens,
            figures.text(model.get("parent")),
            figures.text(model.get("root")),
        )
        for name, model in listed(pages)
    )
