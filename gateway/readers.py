"""Readers: who reads the prompts of which model.

A model with a tokenizer in the configuration is read by it once it is loaded; one with `engine` by asking an engine
that is up; until then, and where there is neither, by its bytes. Loading is done in threads, and the gateway serves
meanwhile.
"""

import asyncio
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from gateway.config import ASK_ENGINE, Kind, ModelConfig
from gateway.questions import Questions
from gateway.routes import Route
from gateway.tokens import PromptReader, Reading
from gateway.tokens.asked import Dialect, EngineReader
from gateway.tokens.encoding import Encoder
from gateway.tokens.loaded import LoadingReader, token_reader
from gateway.tokens.loading import load_tokenizer
from gateway.tokens.plain import TextReader
from policies.request import BlockHash

DIALECTS = {Kind.VLLM: Dialect.VLLM, Kind.SGLANG: Dialect.VLLM, Kind.LLAMACPP: Dialect.LLAMACPP}
BROKEN_WITHIN_S = 1.0  # a file that is none is found out sooner; one that is large takes longer to load


class Readers:
    """The readers of all models."""

    def __init__(self, configs: Iterable[ModelConfig], questions: Questions) -> None:
        self._encoder = Encoder()
        self._others = TextReader()
        self._readers: dict[str, PromptReader] = {}
        self._loading: dict[str, LoadingReader] = {}
        self._tasks: list[asyncio.Task[None]] = []
        for config in configs:
            plain = TextReader(image_tokens=config.image_tokens)
            self._readers[config.name] = plain
            if config.tokenizer == ASK_ENGINE:
                self._readers[config.name] = AskingReader(config.name, questions, plain)
            elif config.tokenizer is not None:
                loading = LoadingReader(partial(self._load, config, plain), plain, config.name)
                self._readers[config.name] = self._loading[config.name] = loading

    def of(self, model: str) -> PromptReader:
        """Give the reader of a model."""
        return self._readers.get(model, self._others)

    async def start(self) -> list[str]:
        """Begin to load tokenizers; give what turns out at once to be wrong with them."""
        self._tasks = [
            asyncio.create_task(reader.load(), name=f"tokenizer of {model}") for model, reader in self._loading.items()
        ]
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=BROKEN_WITHIN_S)
        return [f"models: {model}: {reader.problem}" for model, reader in self._loading.items() if reader.problem]

    async def close(self) -> None:
        """Let go of the threads."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._encoder.close()

    def exactness(self) -> dict[str, bool]:
        """Say of each model with a tokenizer whether it is loaded."""
        return {model: reader.is_loaded for model, reader in self._loading.items()}

    def _load(self, config: ModelConfig, plain: PromptReader) -> PromptReader:
        """Make the exact reader of a model; takes seconds."""
        assert config.tokenizer is not None
        return token_reader(
            config.tokenizer,
            self._encoder,
            plain,
            chat_template=config.chat_template,
            variables=config.chat_template_kwargs,
            image_tokens=config.image_tokens,
        )


class AskingReader:
    """Reads by asking whichever engine of the model is up, in the words of its kind; else by bytes."""

    def __init__(self, model: str, questions: Questions, fallback: PromptReader) -> None:
        self._model = model
        self._questions = questions
        self._fallback = fallback
        self._by_dialect = {
            dialect: EngineReader(model, partial(questions.ask, model), dialect, fallback) for dialect in Dialect
        }

    async def read(self, route: Route, document: dict[str, Any], root: BlockHash, unit_tokens: int) -> Reading:
        """Read a prompt."""
        kind = self._questions.kind_of(self._model)
        dialect = DIALECTS.get(kind) if kind is not None else None
        reader = self._fallback if dialect is None else self._by_dialect[dialect]
        return await reader.read(route, document, root, unit_tokens)


def unreadable(configs: Iterable[ModelConfig]) -> list[str]:
    """Load every tokenizer that is on this machine; give what is wrong with them. Takes seconds."""
    problems = []
    for at, config in enumerate(configs):
        source = config.tokenizer
        if source is None or source == ASK_ENGINE or not Path(source).expanduser().exists():
            continue
        try:
            load_tokenizer(source, chat_template=config.chat_template)
        except Exception as error:  # whatever it is, it is better known now
            problems.append(f"models[{at}].tokenizer: {' '.join(str(error).split())[:300]}")
    return problems
