"""The chat template of a model: messages and tools in, the text that the engine tokenizes out.

Rendered as Hugging Face's `apply_chat_template` does (transformers 5.19, utils/chat_template_utils.py), since engines
render with that: the same sandbox, extensions, filters and globals, and the same way to leave a final message open.

The template comes with the model, from the operator; what clients send is only ever data to it, and a template that a
client sends is not run. The sandbox keeps a template from attributes that begin with an underscore and from changing
what it is given. What it may cost is bounded by its output, and by the items that all its `range`s give together. A
loop over the messages within a loop over the messages is bounded by the messages alone, so the reader gives large
conversations to a thread.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from gateway.tokens.content import is_by_part

MAX_RENDERED_CHARS = 16 << 20  # past every body that is accepted: a template that runs away
MAX_RANGE_ITEMS = 1_000_000  # of all ranges in one rendering; jinja allows 100,000 to each
OPEN_TAG = "CONTINUE_FINAL_MESSAGE_TAG "  # Hugging Face's own, so that what trims it trims ours
_OF_DICTIONARIES = frozenset(dir(dict))
_FIXED: dict[type, frozenset[str]] = {
    kind: frozenset(name for name in dir(kind) if not name.startswith(("_", "format")))
    for kind in (str, list, jinja2.runtime.LoopContext)
}
"""Types whose attributes are the same for each object, and those that may be safe."""
_TOOL_USE, _DEFAULT = "tool_use", "default"


class NotRendered(Exception):
    """The template does not take this conversation: an engine refuses it as well."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}`: marks what training learns from, and renders what it encloses."""

    tags = {"generation"}  # noqa: RUF012  # as the parent class has it

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        """Read up to `{% endgeneration %}`."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller: jinja2.runtime.Macro) -> str:
        return str(caller())


class _Ranges:
    """`range`, with one budget for a whole rendering."""

    def __init__(self) -> None:
        self._left = MAX_RANGE_ITEMS

    def __call__(self, *arguments: int) -> range:
        items = range(*arguments)
        self._left -= len(items)
        if self._left < 0:
            raise NotRendered(f"the template loops more than {MAX_RANGE_ITEMS:,} times")
        return items


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Jinja's sandbox, asked once instead of each time whether a text's `split` is safe: half the time of a rendering.

    Members of a dictionary that are no attribute of dictionaries are data, and attributes of a type that was found
    safe once stay so. `format` is left to the sandbox, which wraps it.
    """

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols])
        self._safe: set[tuple[type, str]] = set()

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Read `obj.attribute`, as a template's code does."""
        kind = type(obj)
        if kind is dict and attribute not in _OF_DICTIONARIES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if (kind, attribute) in self._safe:
            return getattr(obj, attribute)
        if kind in _FIXED and attribute in _FIXED[kind] and self.is_safe_attribute(obj, attribute, None):
            self._safe.add((kind, attribute))
        return super().getattr(obj, attribute)


class ChatTemplate:
    """One template.

    Args:
        source: In Jinja.
        special_tokens: `bos_token` and the like, as variables.

    Raises:
        jinja2.TemplateSyntaxError: it is none.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = _Sandbox()
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        tree = environment.parse(source)
        self.source = source
        self.takes = frozenset(jinja2.meta.find_undeclared_variables(tree))
        """Names of variables that it reads."""
        self.is_by_part = is_by_part(tree)
        """Whether it reads the content of a message part by part; else it is given one text."""
        self.knows_developers = '"developer"' in source or "'developer'" in source
        self._special_tokens = dict(special_tokens)
        self._template = environment.from_string(source)

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        documents: object = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Render a conversation.

        Args:
            messages: As `content.normalise` gives them.
            tools: As `content.normalise_tools` gives them.
            add_generation_prompt: Whether the answer's beginning is added.
            continue_final_message: Whether the last message is left open, to be continued.
            documents: For templates that retrieve.
            variables: Further ones; those that it does not read are dropped.

        Raises:
            NotRendered: it does not take them, for whatever reason.
        """
        if not messages:
            raise NotRendered("there are no messages")
        final = None
        if continue_final_message:
            if add_generation_prompt:
                raise NotRendered("a final message cannot be continued behind a new one's beginning")
            messages, final = self._left_open(messages)
        given = {name: value for name, value in (variables or {}).items() if name in self.takes}
        values = {"range": _Ranges(), **self._special_tokens, **given}
        values |= {
            "messages": messages,
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            text = _bounded(self._template.generate(values))
        except NotRendered:
            raise
        except Exception as error:  # a template's code may raise anything, and engines answer 400 to all of it
            raise NotRendered(str(error)) from error
        return text if final is None else _cut_open(text, final)

    def _left_open(self, messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
        last = dict(messages[-1])
        content = last.get("content")
        if content is None or "content" not in self.source:
            raise NotRendered("the final message has no content to continue")
        if isinstance(content, str):
            final = content
            last["content"] = content + OPEN_TAG
        else:
            parts = [dict(part) for part in content]
            open_part = next((part for part in reversed(parts) if "text" in part), None)
            if open_part is None:
                raise NotRendered("the final message has no text to continue")
            final = open_part["text"]
            open_part["text"] += OPEN_TAG
            last["content"] = parts
        return [*messages[:-1], last], final


class ChatTemplates:
    """The templates of a model by name: one, or one of them for tools."""

    def __init__(self, sources: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        self._by_name = {name: ChatTemplate(source, special_tokens) for name, source in sources.items()}

    def choose(self, *, has_tools: bool) -> ChatTemplate:
        """Give the template for a conversation.

        Raises:
            NotRendered: none is for it.
        """
        found = self._by_name.get(_TOOL_USE) if has_tools else None
        found = found or self._by_name.get(_DEFAULT)
        if found is None:
            raise NotRendered("the model has no chat template for this")
        return found


def _bounded(pieces: Iterator[str]) -> str:
    total = 0
    kept = []
    for piece in pieces:
        total += len(piece)
        if total > MAX_RENDERED_CHARS:
            raise NotRendered(f"the template writes more than {MAX_RENDERED_CHARS:,} characters")
        kept.append(piece)
    return "".join(kept)


def _cut_open(text: str, final: str) -> str:
    tag = OPEN_TAG.strip()
    if final.strip() not in text or tag not in text:
        raise NotRendered("the final message is not in what the template makes of it")
    at = text.rindex(tag)
    # A template that trims has taken the tag's blank away, and would have taken the message's own.
    return text[:at] if text[at : at + len(OPEN_TAG)] == OPEN_TAG else text[:at].rstrip()


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
