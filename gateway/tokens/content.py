"""Messages and tools as vLLM hands them to a chat template (0.32, renderers/chat_utils.py and hf.py).

What differs from the body, each because the engine does it and the tokens show it:

    content           one text, its parts joined by newlines; or a list of parts, for templates that loop over them
    calls of tools    arguments as an object, not as JSON text; `id`, `function`, `type` in this order
    tools             name, description, parameters in this order, and null where there is none
    reasoning         under both of its names
    developers        become system messages where the template does not know them, all of them in one at the front
    pictures          a mark that no tokenizer knows, to be found again in the rendered text
"""

import json
import secrets
from collections import deque
from collections.abc import Iterator
from typing import Any

import jinja2.nodes as nodes

from gateway.tokens.media import MAX_MEDIA, PART_KEYS, content_of, is_media

_TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
_KNOWN_PART_FIELDS = frozenset(
    ("type", "text", "refusal", "thinking", "closed", "name", "uuid", "data", "detail", "prompt_cache_breakpoint")
) | frozenset(PART_KEYS)
"""What parts of any kind have of their own: only other members reach the template."""
_BILLING = "x-anthropic-billing-header"  # another value in each request; engines drop the line for their caches' sake
_MODALITIES = {"audio": "audio", "video": "video"}


class OddBody(Exception):
    """Messages or tools that no engine takes."""


NONCE = secrets.token_hex(8)  # nobody outside can write a mark into a text


def mark_of(at: int) -> str:
    """Give the mark of the picture with this number."""
    return f"\x00media {NONCE} {at}\x00"


def normalise(messages: object, media: list[bytes], *, by_part: bool, knows_developers: bool) -> list[dict[str, Any]]:
    """Make messages what a template takes.

    Args:
        messages: From a chat body; not changed.
        media: Gets the content of each picture, in order.
        by_part: Whether content stays a list of parts.
        knows_developers: Whether the template has a role for them.

    Raises:
        OddBody: an engine would refuse them.
    """
    if not isinstance(messages, list):
        raise OddBody("messages are a list")
    given = [_message(message, media, by_part) for message in messages]
    if not knows_developers and any(message["role"] == "developer" for message in given):
        return _under_one_system(given)
    return given


def _message(message: object, media: list[bytes], by_part: bool) -> dict[str, Any]:
    if not isinstance(message, dict) or not isinstance(role := message.get("role"), str):
        raise OddBody("a message is an object with a role")
    content = message.get("content")
    result: dict[str, Any] = {"role": role, "content": content}
    if role == "system":
        content = _without_billing(content)
    if not isinstance(content, str):
        result["content"] = _parts(content, media, by_part)
    elif by_part:
        result["content"] = [{"type": "text", "text": content}]
    else:
        result["content"] = content
    if role == "assistant":
        calls = message.get("tool_calls")
        if calls:
            result["tool_calls"] = [_call(call) for call in calls] if isinstance(calls, list) else _odd("tool_calls")
        reasoning = message.get("reasoning")
        if reasoning is not None:
            result["reasoning"] = result["reasoning_content"] = reasoning
    elif role == "tool":
        if "tool_call_id" in message:
            result["tool_call_id"] = message["tool_call_id"]
        parts = result["content"]
        if isinstance(parts, list) and all(part.get("type") == "text" for part in parts):
            result["content"] = "\n".join(part["text"] for part in parts)
    for name in ("name", "task"):
        if isinstance(message.get(name), str):
            result[name] = message[name]
    if role == "developer":
        result["tools"] = message.get("tools")
    return result


def _odd(what: str) -> Any:
    raise OddBody(f"{what} is not what it should be")


def _parts(content: object, media: list[bytes], by_part: bool) -> object:
    if content is None:
        content = []
    if not isinstance(content, list):
        raise OddBody("content is a text or a list of parts")
    kept: list[Any] = []
    pictures: list[str] = []
    for part in content:
        if isinstance(part, str):
            kept.append({"type": "text", "text": part} if by_part else part)
            continue
        if not isinstance(part, dict):
            raise OddBody("a part of content is a text or an object")
        kind = part.get("type")
        if kind in _TEXT_PARTS:
            text = part.get(_TEXT_PARTS[kind])
            if text is None:
                continue
            if not isinstance(text, str):
                raise OddBody("the text of a part is a text")
            extra = {name: value for name, value in part.items() if name not in _KNOWN_PART_FIELDS} if by_part else {}
            kept.append({"type": "text", "text": text, **extra} if by_part else text)
        elif is_media(part):
            if len(media) >= MAX_MEDIA:
                raise OddBody(f"more than {MAX_MEDIA} pictures")
            mark = mark_of(len(media))
            media.append(content_of(part))
            pictures.append(mark)
            if by_part:
                modality = next((name for name in _MODALITIES if name in str(kind)), "image")
                kept += ({"type": "text", "text": mark}, {"type": modality})
        elif kind == "tool_reference":
            kept.append({"type": "tool_reference", "name": part.get("name")} if by_part else str(part.get("name")))
        else:
            raise OddBody("a part of content has a type that nobody knows")
    if by_part:
        return kept
    return "\n".join([*pictures, *filter(None, kept)])


def _call(call: object) -> dict[str, Any]:
    if not isinstance(call, dict) or call.get("type", "function") != "function" or "id" not in call:
        raise OddBody("a call is a function's, and has an id")
    function = call.get("function")
    if not isinstance(function, dict):
        raise OddBody("a call has a function")
    arguments = function.get("arguments")
    if isinstance(arguments, str) and arguments:
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = {}
    if not isinstance(arguments, dict):
        arguments = {}
    ordered = {"arguments": arguments, **_in_order(function, ("name",), ("arguments",))}
    return {
        **_in_order(call, ("id",), tuple(call.keys() - {"id"})),
        "function": ordered,
        **_in_order(call, ("type",), ("id", "function")),
    }


def _in_order(value: dict[str, Any], first: tuple[str, ...], without: tuple[str, ...]) -> dict[str, Any]:
    """Give members, those in `first` before the rest."""
    ordered = {name: value[name] for name in first if name in value}
    return ordered | {name: item for name, item in value.items() if name not in without}


def _without_billing(content: object) -> object:
    if isinstance(content, str):
        return content.partition("\n")[2] if content.startswith(_BILLING) else content
    if not isinstance(content, list):
        return content
    kept = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else part
        if not isinstance(text, str) or not text.startswith(_BILLING):
            kept.append(part)
        elif rest := text.partition("\n")[2]:
            kept.append({**part, "text": rest} if isinstance(part, dict) else rest)
    return kept


def _under_one_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for message in messages:
        if message["role"] == "developer":
            message["role"] = "system"
            message.pop("tools", None)
    systems = [message for message in messages if message["role"] == "system"]
    if len(systems) == 1 and messages[0] is systems[0]:
        return messages
    texts = []
    for message in systems:
        content = message["content"]
        if isinstance(content, list):
            content = "\n".join(part["text"] for part in content if "text" in part)
        if content:
            texts.append(content)
    others = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(texts)}, *others]


def normalise_tools(tools: object) -> list[dict[str, Any]] | None:
    """Make tools what a template takes: members in the order in which vLLM writes them, null for what is not there.

    Raises:
        OddBody: an engine would refuse them.
    """
    if tools is None:
        return None
    if not isinstance(tools, list):
        raise OddBody("tools are a list")
    return [_tool(tool) for tool in tools]


def _tool(tool: object) -> dict[str, Any]:
    if not isinstance(tool, dict) or tool.get("type", "function") != "function":
        raise OddBody("a tool is a function's")
    function = tool.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise OddBody("a tool has a function with a name")
    written = {name: function.get(name) for name in ("name", "description", "parameters")}
    if not isinstance(written["description"], str | None) or not isinstance(written["parameters"], dict | None):
        raise OddBody("a tool's description is a text, its parameters are an object")
    deferred = tool.get("defer_loading")
    for name, value in (("strict", None), ("defer_loading", deferred)):
        value = value if function.get(name) is None else function[name]
        if value is not None:
            written[name] = value
    result = {"type": "function", "function": written}
    if deferred is not None:
        result["defer_loading"] = deferred
    return result


# Whether a template reads content part by part: whether it loops over a message's content. vLLM's own rule, in hf.py.


def is_by_part(tree: nodes.Template) -> bool:
    """Whether the template loops over the parts of a message's content."""
    messages = set(_loop_targets(tree, "messages"))
    parameters = _content_parameters(tree, messages)
    in_macros = {id(loop) for macro in tree.find_all(nodes.Macro) for loop in macro.find_all(nodes.For)}
    for loop in tree.find_all(nodes.For):
        if any(_reads(loop.iter, name, "content") for name in messages):
            return True
        if isinstance(loop.iter, nodes.Name):
            named = loop.iter.name
            if named in parameters.get(id(loop), ()) or (named == "content" and id(loop) not in in_macros):
                return True
    return False


def _content_parameters(tree: nodes.Template, messages: set[str]) -> dict[int, set[str]]:
    """Give, by loop within a macro, the macro's parameters that a message's content is ever handed to."""
    found: dict[int, set[str]] = {}
    for macro in tree.find_all(nodes.Macro):
        names = [argument.name for argument in macro.args]
        handed = set()
        for call in tree.find_all(nodes.Call):
            if not isinstance(call.node, nodes.Name) or call.node.name != macro.name:
                continue
            pairs = [*zip(names, call.args, strict=False), *((item.key, item.value) for item in call.kwargs)]
            handed |= {
                name for name, value in pairs if name in names and any(_reads(value, of, "content") for of in messages)
            }
        for loop in macro.find_all(nodes.For):
            found[id(loop)] = handed
    return found


def _loop_targets(tree: nodes.Template, name: str) -> Iterator[str]:
    """Give the variables that stand for one item of `name`, or of what it is assigned to."""
    aliases = {name}
    pending = deque(aliases)
    while pending:
        current = pending.popleft()
        for assignment in tree.find_all(nodes.Assign):
            if _reads(assignment.node, current) and isinstance(assignment.target, nodes.Name):
                target = assignment.target.name
                if target not in aliases:
                    aliases.add(target)
                    pending.append(target)
    for loop in tree.find_all(nodes.For):
        if isinstance(loop.target, nodes.Name) and any(_reads(loop.iter, alias) for alias in aliases):
            yield loop.target.name


def _reads(node: nodes.Node | None, name: str, key: str | None = None) -> bool:
    """Whether an expression is a variable, or its member `key`; through filters, tests and slices."""
    if isinstance(node, nodes.Filter | nodes.Test):
        return _reads(node.node, name, key)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return _reads(node.node, name, key)
    if key is not None:
        if isinstance(node, nodes.Getitem):
            return _reads(node.node, name) and isinstance(node.arg, nodes.Const) and node.arg.value == key
        return isinstance(node, nodes.Getattr) and node.attr == key and _reads(node.node, name)
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
