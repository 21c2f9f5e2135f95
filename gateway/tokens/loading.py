"""Finds and loads a model's tokenizer and chat templates: from a file, a folder, or the Hugging Face hub.

    tokenizer.json            the tokenizer itself; all else is optional
    tokenizer_config.json     special tokens, the chat template
    special_tokens_map.json   special tokens, in older models
    chat_template.jinja       the chat template of newer models, over the one in tokenizer_config.json
    chat_template.json        the same of models that see
    additional_chat_templates/NAME.jinja

What transformers 5 does to a tokenizer when engines load it is done here too: tokens of tokenizer_config.json are added
to it. What it does for some classes beyond that is not: it makes a Llama tokenizer of whatever calls itself one, and
engines that load such a model read it wrong. Loading takes seconds and belongs in a thread.
"""

import json
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError
from jinja2 import TemplateError
from tokenizers import AddedToken, Tokenizer

from gateway.tokens.template import ChatTemplates

TOKENIZER, CONFIG = "tokenizer.json", "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
TEMPLATE, SEEING_TEMPLATE = "chat_template.jinja", "chat_template.json"
MORE_TEMPLATES = "additional_chat_templates"
NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
HUB_PATIENCE_S = 60.0


class NotLoaded(Exception):
    """There is no such tokenizer, or it is broken; the message is one line."""


@dataclass(frozen=True, slots=True)
class ModelTokenizer:
    """A model's tokenizer with what goes around it."""

    tokenizer: Tokenizer
    templates: ChatTemplates | None
    """None: the model has no chats."""
    before: tuple[int, ...]
    """Ids that are put before a prompt that is no chat."""
    after: tuple[int, ...]


def load_tokenizer(
    source: str, *, chat_template: str | None = None, hub_patience_s: float = HUB_PATIENCE_S
) -> ModelTokenizer:
    """Load a tokenizer.

    Args:
        source: A file `tokenizer.json`, a folder that holds one, or a repository of the hub as `org/name`. The hub is
            asked as `huggingface_hub` does, with HF_HOME, HF_ENDPOINT and HF_TOKEN.
        chat_template: A file with the template to take instead of its own.
        hub_patience_s: How long all downloads together may take.

    Raises:
        NotLoaded: none can be had from there.
    """
    path = Path(source).expanduser()
    if path.is_file():
        return _from_files(path, path.parent if path.name == TOKENIZER else None, chat_template)
    if path.is_dir():
        if not (path / TOKENIZER).is_file():
            raise NotLoaded(f"{source}: the folder has no {TOKENIZER}")
        return _from_files(path / TOKENIZER, path, chat_template)
    if source.count("/") != 1 or source.startswith((".", "/", "~")) or source.endswith(".json"):
        raise NotLoaded(f"{source}: there is no such file or folder")
    folder = _downloaded(source, hub_patience_s)
    return _from_files(folder / TOKENIZER, folder, chat_template)


def _downloaded(repository: str, patience_s: float) -> Path:
    """Fetch the files, within a time; give the folder that they are in."""
    outcome: list[Path | Exception] = []

    def fetch() -> None:
        try:
            folder = Path(hf_hub_download(repository, TOKENIZER)).parent
            for name in (CONFIG, SPECIAL_TOKENS, TEMPLATE, SEEING_TEMPLATE):
                try:
                    hf_hub_download(repository, name)
                except EntryNotFoundError:
                    continue
            outcome.append(folder)
        except Exception as error:  # the hub's client raises what its network stack does; all of it means the same
            outcome.append(error)

    # A thread of its own: what hangs in a name server or a proxy cannot be stopped, only left behind.
    thread = threading.Thread(target=fetch, name=f"hub {repository}", daemon=True)
    thread.start()
    thread.join(patience_s)
    if not outcome:
        raise NotLoaded(f"{repository}: the hub has not answered within {patience_s:g} s")
    found = outcome[0]
    if isinstance(found, Exception):
        raise NotLoaded(f"{repository}: {type(found).__name__}: {_line(found)}") from found
    return found


def _from_files(path: Path, folder: Path | None, chat_template: str | None) -> ModelTokenizer:
    try:
        tokenizer = Tokenizer.from_file(os.fspath(path))
    except Exception as error:  # the library raises plain Exception
        raise NotLoaded(f"{path}: is no tokenizer: {_line(error)}") from error
    config = _json(folder, CONFIG) if folder else {}
    named = {**(_json(folder, SPECIAL_TOKENS) if folder else {}), **config}
    specials = {name: text for name in NAMED_TOKENS if (text := _text_of(named.get(name)))}
    extra = named.get("extra_special_tokens")
    if isinstance(extra, dict):
        specials |= {name: text for name, value in extra.items() if (text := _text_of(value))}
    tokenizer.no_truncation()
    tokenizer.no_padding()
    _add_tokens(tokenizer, config, specials)
    try:
        if chat_template is not None:
            templates = {"default": Path(chat_template).expanduser().read_text(encoding="utf-8")}
        else:
            templates = _templates(config, folder)
        chats = ChatTemplates(templates, specials) if templates else None
    except (OSError, UnicodeDecodeError) as error:
        raise NotLoaded(f"{chat_template or path}: {_line(error)}") from error
    except TemplateError as error:
        raise NotLoaded(f"{chat_template or path}: the chat template is no template: {_line(error)}") from error
    before, after = _affixes(tokenizer)
    return ModelTokenizer(tokenizer, chats, before, after)


def _add_tokens(tokenizer: Tokenizer, config: Mapping[str, Any], specials: Mapping[str, str]) -> None:
    """Add what the configuration has beside the tokenizer; its flags go before the tokenizer's."""
    known = {repr(token) for token in tokenizer.get_added_tokens_decoder().values()}
    decoder = config.get("added_tokens_decoder")
    listed = sorted(decoder.items(), key=lambda item: int(item[0])) if isinstance(decoder, dict) else []
    tokens = [
        AddedToken(
            value["content"],
            single_word=bool(value.get("single_word")),
            lstrip=bool(value.get("lstrip")),
            rstrip=bool(value.get("rstrip")),
            normalized=bool(value.get("normalized", not value.get("special"))),
            special=bool(value.get("special")),
        )
        for _, value in listed
        if isinstance(value, dict) and isinstance(value.get("content"), str)
    ]
    tokens = [token for token in tokens if repr(token) not in known]
    added = {token.content for token in (*tokens, *tokenizer.get_added_tokens_decoder().values())}
    tokens += [AddedToken(text, special=True) for text in dict.fromkeys(specials.values()) if text not in added]
    for token in tokens:
        token.special = token.special or token.content in specials.values()
    tokenizer.add_tokens(tokens)


def _templates(config: Mapping[str, Any], folder: Path | None) -> dict[str, str]:
    given = config.get("chat_template")
    if isinstance(given, str):
        templates = {"default": given}
    elif isinstance(given, list):
        templates = {item["name"]: item["template"] for item in given}
    else:
        templates = dict(given or {})
    if folder is None:
        return templates
    if not templates and isinstance(seeing := _json(folder, SEEING_TEMPLATE).get("chat_template"), str):
        templates = {"default": seeing}
    files = {"default": folder / TEMPLATE} if (folder / TEMPLATE).is_file() else {}
    files |= {path.stem: path for path in sorted((folder / MORE_TEMPLATES).glob("*.jinja"))}
    return {name: path.read_text(encoding="utf-8") for name, path in files.items()} or templates


def _affixes(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Find out what is put around a prompt, by trial.

    By tokenizer.json alone: transformers 5 drops the `add_bos_token` of tokenizer_config.json where there is one.
    """
    plain = tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.encode("a", add_special_tokens=True).ids
    for at in range(len(whole) - len(plain) + 1):
        if whole[at : at + len(plain)] == plain:
            return tuple(whole[:at]), tuple(whole[at + len(plain) :])
    return (), ()


def _text_of(token: object) -> str | None:
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _json(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise NotLoaded(f"{path}: {_line(error)}") from error
    return found if isinstance(found, dict) else {}


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
