"""Readers: who reads the prompts of which model."""

from gateway.config import ModelConfig
from gateway.tokens import PromptReader, TextReader


class Readers:
    def __init__(self, configs: tuple[ModelConfig, ...]) -> None:
        self._default = TextReader()

    def of(self, model: str) -> PromptReader:
        return self._default
