"""Readers: who reads the prompts of which model.

A model with a tokenizer in the configuration is read by it once it is loaded; until then, and where there is none, by
its bytes. Loading is done in threads, and the gateway serves meanwhile.
"""

import asyncio
from collections.abc import Iterable
from functools import partial

from gateway.config import ModelConfig
from gateway.tokens import PromptReader
from gateway.tokens.encoding import Encoder
from gateway.tokens.exact import TokenReader
from gateway.tokens.loaded import LoadingReader, checked, memory_of
from gateway.tokens.loading import load_tokenizer
from gateway.tokens.plain import TextReader

BROKEN_WITHIN_S = 1.0  # a file that is none is found out sooner; one that is large takes longer to load


class Readers:
    """The readers of all models."""

    def __init__(self, configs: Iterable[ModelConfig]) -> None:
        self._encoder = Encoder()
        self._others = TextReader()
        self._readers: dict[str, PromptReader] = {}
        self._loading: dict[str, LoadingReader] = {}
        self._tasks: list[asyncio.Task[None]] = []
        for config in configs:
            plain = TextReader(image_tokens=config.image_tokens)
            self._readers[config.name] = plain
            if config.tokenizer is not None:
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
        model = checked(config.name, load_tokenizer(config.tokenizer))
        return TokenReader(model, self._encoder, memory_of(), plain, image_tokens=config.image_tokens)
