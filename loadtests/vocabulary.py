"""Vocabulary: how an engine cuts text into tokens, writes conversations out, and what words it answers with.

Without a tokenizer it is the engine's own of `tokens.py`. With one, text is cut by the model's real tokenizer and
conversations are written as ChatML; a token is then the four bytes of its id. It shares no code with the gateway, so
that what both say of a prompt can be held against each other.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Protocol

from tokenizers import Tokenizer

from loadtests import chatml, tokens
from loadtests.tokens import WORDS, Json, Language

SMALL = "small"
"""What the tokenizer that ships with Kvlane goes by."""
ID_BYTES = 4
REMEMBERED_PARTS = 4096  # some 2 KB each
REMEMBERED_CHARS = 65_536  # of longer parts no two are alike
LEAST_WORDS = 16  # fewer make answers that nobody likes to look at


class Vocabulary(Protocol):
    """What an engine knows of language."""

    def cut(self, text: str) -> list[bytes]:
        """Cut text into tokens."""
        ...

    def talk(self, messages: Sequence[Json], tools: Json, options: Mapping[str, Json]) -> list[bytes]:
        """Write a conversation out and cut it.

        Args:
            options: The body they came in.

        Raises:
            ValueError: A message is not an object with a role.
        """
        ...

    def text(self, tokens: Sequence[bytes]) -> str:
        """Give the text of tokens."""
        ...

    def to_ids(self, tokens: Sequence[bytes]) -> list[int]:
        """Give tokens their ids."""
        ...

    def from_ids(self, ids: Iterable[int]) -> list[bytes]:
        """Give back the tokens; any id is one."""
        ...

    def language(self, seed: int, alphabet: str, given: str | None) -> Language:
        """Give what is said to one prompt."""
        ...


class OwnVocabulary:
    """The simulated engine's own: tokens are pieces of text."""

    def cut(self, text: str) -> list[bytes]:
        """Cut text into tokens."""
        return tokens.cut(text.encode())

    def talk(self, messages: Sequence[Json], tools: Json, options: Mapping[str, Json]) -> list[bytes]:
        """Write a conversation out and cut it."""
        return tokens.talk(messages, tools)

    def text(self, tokens: Sequence[bytes]) -> str:
        """Give the text of tokens."""
        return b"".join(tokens).decode("utf-8", "replace")

    def to_ids(self, given: Sequence[bytes]) -> list[int]:
        """Give tokens their ids."""
        return tokens.to_ids(given)

    def from_ids(self, ids: Iterable[int]) -> list[bytes]:
        """Give back the tokens."""
        return tokens.from_ids(ids)

    def language(self, seed: int, alphabet: str, given: str | None) -> Language:
        """Give what is said to one prompt."""
        return Language(seed, alphabet, given)


class TrainedVocabulary:
    """A real tokenizer's: tokens are ids.

    Args:
        folder: Holds `tokenizer.json`; or that file itself.

    Raises:
        ValueError: It is none.
    """

    def __init__(self, folder: str) -> None:
        path = Path(folder)
        path = path / "tokenizer.json" if path.is_dir() else path
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as exc:  # the library raises plain Exception
            raise ValueError(f"{path}: {str(exc).splitlines()[0]}") from exc
        self._tokens = [id.to_bytes(ID_BYTES, "little") for id in range(self._tokenizer.get_vocab_size())]
        self._cut_often = lru_cache(REMEMBERED_PARTS)(self._encode)
        own = [word for word in WORDS if self._is_word(word)]
        if len(own) < LEAST_WORDS:
            known = sorted(word for word in self._tokenizer.get_vocab() if word.isascii() and word.isalpha())
            own = [word for word in known if self._is_word(word)] or list(WORDS)
        self._words = tuple(own)

    def cut(self, text: str) -> list[bytes]:
        """Cut text into tokens."""
        return list(self._cut_often(text) if len(text) <= REMEMBERED_CHARS else self._encode(text))

    def talk(self, messages: Sequence[Json], tools: Json, options: Mapping[str, Json]) -> list[bytes]:
        """Write a conversation out as ChatML and cut it."""
        return [token for part in chatml.render(messages, tools, options) for token in self.cut(part)]

    def text(self, tokens: Sequence[bytes]) -> str:
        """Give the text of tokens."""
        known = [id for id in self.to_ids(tokens) if id < len(self._tokens)]
        return str(self._tokenizer.decode(known, skip_special_tokens=False))

    def to_ids(self, tokens: Sequence[bytes]) -> list[int]:
        """Give tokens their ids."""
        return [int.from_bytes(token, "little") for token in tokens]

    def from_ids(self, ids: Iterable[int]) -> list[bytes]:
        """Give back the tokens; ids that the tokenizer does not have are longer than others."""
        most = len(self._tokens)
        return [self._tokens[id] if 0 <= id < most else id.to_bytes(16, "little", signed=True) for id in ids]

    def language(self, seed: int, alphabet: str, given: str | None) -> Language:
        """Give what is said to one prompt, a token a word; of other alphabets a word may be several tokens."""
        if given:
            return Spoken(seed, self, self._pieces(given))
        return Spoken(seed, self, self._words) if alphabet == "words" else Language(seed, alphabet)

    def _encode(self, text: str) -> list[bytes]:
        return [self._tokens[id] for id in self._tokenizer.encode(text).ids]

    def _is_word(self, word: str) -> bool:
        return len(self._encode(word)) == len(self._encode(" " + word)) == 1

    def _pieces(self, text: str) -> "list[tuple[str, bytes]]":
        """Cut text into tokens with their text; of a character in several tokens the first has none."""
        encoding = self._tokenizer.encode(text)
        pieces, at = [], 0
        for id, (_, end) in zip(encoding.ids, encoding.offsets, strict=True):
            pieces.append((text[at : max(at, end)], self._tokens[id]))
            at = max(at, end)
        return pieces


class Spoken(Language):
    """What is said in a real tokenizer's tokens: words drawn, or a text over and over."""

    __slots__ = ("_pieces", "_vocabulary")

    def __init__(
        self, seed: int, vocabulary: TrainedVocabulary, said: "Sequence[str] | list[tuple[str, bytes]]"
    ) -> None:
        super().__init__(seed)
        self._vocabulary = vocabulary
        self._pieces = [piece for piece in said if isinstance(piece, tuple)]
        self._words = tuple(piece for piece in said if isinstance(piece, str)) or WORDS

    def word(self, at: int) -> str:
        """Give the text of one token."""
        return self._pieces[at % len(self._pieces)][0] if self._pieces else super().word(at)

    def token(self, at: int) -> bytes:
        """Give one token."""
        if self._pieces:
            return self._pieces[at % len(self._pieces)][1]
        return b"".join(self._vocabulary.cut(self.word(at)))


def small_tokenizer() -> str:
    """Give the folder of the tokenizer that ships with Kvlane."""
    return str(files("loadtests") / "data" / "tokenizer")


OWN: Vocabulary = OwnVocabulary()


@cache
def vocabulary(folder: str | None) -> Vocabulary:
    """Give the vocabulary of a tokenizer's folder, or the engine's own; engines of one process share it.

    Raises:
        ValueError: There is no tokenizer.
    """
    return OWN if folder is None else TrainedVocabulary(folder)
