"""The configuration as a document: YAML with its traps closed, environment references put in, problems put into words.

Nothing here knows what a configuration may say; `config.py` does. What is closed: keys that stand twice (YAML keeps the
last, the first would vanish without a word), dates (nobody's setting is one), aliases that hold themselves, nesting
without end. Whatever is wrong is a line of text with the path of the value, never a traceback.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

ENVIRONMENT_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
MAX_DEPTH = 32  # of nesting; a configuration needs five
SECRET = re.compile("key|sha256|password")  # in the name of a value: it is not quoted where it is wrong


class Unreadable(Exception):
    """The document cannot be read at all; the message is one line."""


class Missing(Unreadable):
    """There is no such file."""


class _Loader(yaml.SafeLoader):
    """YAML without dates, and without keys that stand twice."""

    yaml_implicit_resolvers = {  # noqa: RUF012  # as the parent class has it
        first: [pair for pair in pairs if pair[0] != "tag:yaml.org,2002:timestamp"]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Make a mapping, after a look at its keys."""
        if isinstance(node, yaml.MappingNode):
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            twice = [key for key, count in Counter(keys).items() if count > 1]
            if twice:
                raise yaml.MarkedYAMLError(problem=f"the key {twice[0]!r} is there twice", problem_mark=node.start_mark)
        return super().construct_mapping(node, deep)


def read(path: Path) -> object:
    """Read a YAML file.

    Raises:
        Missing: there is none.
        Unreadable: it cannot be read, or is not YAML, or not such that a configuration could come of it.
    """
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except FileNotFoundError as error:
        raise Missing(error.strerror) from error
    except OSError as error:
        raise Unreadable(error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise Unreadable("is not UTF-8 text") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise Unreadable(f"{error.problem or error.context or 'is not YAML'}{where}") from error
    except RecursionError as error:
        raise Unreadable("is nested too deeply") from error
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise Unreadable("holds a value that cannot be read: " + " ".join(str(error).split())[:200]) from error


def resolve(
    value: Any, environment: Mapping[str, str], problems: dict[str, str], path: str = "", depth: int = 0
) -> Any:
    """Put in what `${NAME}` stands for; what is not set becomes a problem of that path."""
    if depth > MAX_DEPTH:
        problems[path] = "is nested too deeply, or holds itself"
        return None
    if isinstance(value, dict):
        return {
            key: resolve(item, environment, problems, f"{path}.{key}" if path else str(key), depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [resolve(item, environment, problems, f"{path}[{at}]", depth + 1) for at, item in enumerate(value)]
    if not isinstance(value, str):
        return value
    missing = [name for name in ENVIRONMENT_REFERENCE.findall(value) if name not in environment]
    if missing:
        problems[path] = f"environment variable {missing[0]} is not set"
    return ENVIRONMENT_REFERENCE.sub(lambda match: environment.get(match[1], ""), value)


def worded(errors: Iterable[Any], problems: dict[str, str]) -> list[str]:
    """Put pydantic's errors into words, one line each, beside the problems that are known already.

    A value that is a problem already is not one twice; a list is not too short where the entries it lacks are wrong.
    """
    found = list(errors)
    lines = [f"{path}: {problem}" for path, problem in problems.items()]
    for item in found:
        if item["type"] == "too_short" and any(_is_inside(other["loc"], item["loc"]) for other in found):
            continue
        path = path_of(item["loc"])
        if path not in problems:
            lines.append(_line(item, path))
    return lines


def path_of(location: Iterable[int | str]) -> str:
    """Write a place in the document as people do: `pools[0].endpoints[1].url`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")


def _is_inside(path: tuple[Any, ...], outer: tuple[Any, ...]) -> bool:
    return len(path) > len(outer) and path[: len(outer)] == outer


def _line(item: Any, path: str) -> str:
    message = str(item["msg"]).removeprefix("Value error, ")
    message = re.sub("^Input should be (?:a valid )?", "must be ", message)
    message = message[:1].lower() + message[1:]
    match item["type"]:
        case "extra_forbidden":
            return f"{path}: unknown key"
        case "missing":
            return f"{path}: is required"
        case "too_short":
            return f"{path}: must have at least {item['ctx']['min_length']}, has {item['ctx']['actual_length']}"
        case "tuple_type":
            message = "must be a list"
        case "model_type":
            message = "must be a mapping"
        case "int_type" | "int_parsing" | "int_from_float":
            message = "must be a whole number"
        case "float_type" | "float_parsing":
            message = "must be a number"
        case "bool_type" | "bool_parsing":
            message = "must be true or false"
        case "string_type" | "path_type":
            message = "must be text"
    if not path:
        return message
    last = path.rpartition(".")[2]
    if isinstance(item["input"], (dict, list, tuple)) or SECRET.search(last):
        return f"{path}: {message}"
    return f"{path}: {message}, is {_without_user(item['input'])!r}"


def _without_user(value: object) -> object:
    """Hide who is named before the host in a URL, or in what was to be one."""
    return re.sub(r"([a-z+]*://)?.*@", r"\1…@", value) if isinstance(value, str) else value
