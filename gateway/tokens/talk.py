"""Bodies that hold a conversation, in the one form that engines turn them into: a chat with a template's variables.

Responses and messages are converted as vLLM 0.32 does it (entrypoints/openai/responses/utils.py and
entrypoints/anthropic/serving.py), for what has a place in a chat; a body with anything else is odd here, and estimated.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.routes import Route, Shape
from gateway.tokens.content import OddBody
from gateway.tokens.plain import LEADING_ROLES, key_of
from policies.request import BlockHash

_UNSET = (None, "auto")  # vLLM: as if it were not there
_REFUSED = frozenset(("chat_template", "tokenize", "messages", "conversation"))
_COUNT_PATH = "/v1/messages/count_tokens"


@dataclass(slots=True)
class Talk:
    """A conversation, before it meets a template."""

    messages: Any
    tools: Any = None
    documents: Any = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    is_whole: bool = True
    """False: the engine knows more of it than the body says."""
    variables: dict[str, Any] = field(default_factory=dict)


def talk_of(route: Route, document: dict[str, Any], defaults: Mapping[str, Any]) -> Talk | None:
    """Read a conversation out of a body; None: it is none.

    Args:
        route: Whose shape it has.
        document: The parsed body; not changed.
        defaults: Variables of the template that the engines are started with.

    Raises:
        OddBody: an engine would refuse it, or nobody here knows what it makes of it.
    """
    if route.shape is Shape.RESPONSES:
        return _from_responses(document, defaults)
    if route.shape is Shape.MESSAGES or route.path == _COUNT_PATH:
        return _from_messages(document, defaults)
    if route.shape is Shape.CHAT or ("messages" in document and route.shape is Shape.OTHER):
        return _from_chat(document, defaults, is_chat=route.shape is Shape.CHAT)
    return None


def _from_chat(document: dict[str, Any], defaults: Mapping[str, Any], *, is_chat: bool) -> Talk:
    get = document.get
    if get("chat_template") is not None:
        raise OddBody("a template of the client's own")
    talk = Talk(
        _listed(get("messages")),
        get("tools"),
        add_generation_prompt=_flag(document, "add_generation_prompt", True),
        continue_final_message=_flag(document, "continue_final_message", False),
        add_special_tokens=_flag(document, "add_special_tokens", False),
    )
    further: dict[str, Any] = {}
    if is_chat:
        if talk.tools == []:
            raise OddBody("tools that are none")
        talk.messages = [_with_reasoning(message) for message in talk.messages]
        talk.documents = get("documents")
        effort = get("reasoning_effort")
        further["reasoning_effort"] = effort
        if effort is not None:
            further["enable_thinking"] = effort != "none"
    _set_variables(talk, defaults, document, further)
    return talk


def _listed(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise OddBody("what should be a list is none")
    return value


def _with_reasoning(message: object) -> object:
    """Give reasoning its new name."""
    if not isinstance(message, dict) or message.get("reasoning_content") is None:
        return message
    if message.get("reasoning") is not None:
        return message
    return {**message, "reasoning": message["reasoning_content"]}


def _set_variables(
    talk: Talk, defaults: Mapping[str, Any], document: dict[str, Any], further: Mapping[str, Any]
) -> None:
    given = document.get("chat_template_kwargs") or {}
    if not isinstance(given, dict) or given.keys() & _REFUSED:
        raise OddBody("variables that no template may be given")
    if "enable_thinking" in given:
        further = {name: value for name, value in further.items() if name != "enable_thinking"}
    named = {**given, **{name: value for name, value in further.items() if value not in _UNSET}}
    variables = {**defaults, **{name: value for name, value in named.items() if value not in _UNSET}}
    if "tools" in variables:
        raise OddBody("tools among the variables")
    if talk.documents is None:
        talk.documents = variables.get("documents")
    talk.variables = variables


def _flag(document: dict[str, Any], name: str, default: bool) -> bool:
    value = document.get(name, default)
    if not isinstance(value, bool):
        raise OddBody(f"{name} is true or false")
    return value


def has_system_prompt(talk: Talk) -> bool:
    """Whether a system prompt comes before what the user says."""
    for message in talk.messages:
        if message["role"] in LEADING_ROLES:
            return True
        if message["role"] == "user":
            break
    return False


def keys_of(talk: Talk, root: BlockHash) -> tuple[BlockHash | None, BlockHash | None]:
    """Name head and opening by what they are made of, where no rendered text shows them.

    Raises:
        OddBody: it cannot be written down.
    """
    leading = []
    first = None
    for message in talk.messages:
        if message["role"] == "user":
            first = message
            break
        if message["role"] in LEADING_ROLES:
            leading.append(message)
    try:
        system_key = key_of(root, orjson.dumps([leading, talk.tools])) if leading or talk.tools else None
        return system_key, None if first is None else key_of(system_key or root, orjson.dumps(first))
    except orjson.JSONEncodeError as error:
        raise OddBody("nested too deeply") from error


def texts_of(document: dict[str, Any]) -> list[str]:
    """Give the texts that a body without a conversation has tokenized, first one first.

    Raises:
        OddBody: an engine would refuse it.
    """
    found: list[str] = []
    for name in ("prompt", "input", "query", "queries", "text_1", "text_2", "data_1", "data_2", "documents"):
        value = document.get(name)
        values = value if isinstance(value, list) else [] if value is None else [value]
        for text in values:
            if isinstance(text, dict):
                text = text.get("text")
            if not isinstance(text, str):
                raise OddBody(f"{name} is a text, or several")
            found.append(text)
    return found


# Responses: items that belong to one turn of the assistant are joined.


def _from_responses(document: dict[str, Any], defaults: Mapping[str, Any]) -> Talk:
    messages: list[dict[str, Any]] = []
    if document.get("instructions"):
        messages.append({"role": "system", "content": document["instructions"]})
    given = document.get("input")
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    elif isinstance(given, list):
        for item in given:
            _put_item(messages, item)
    else:
        raise OddBody("input is a text or a list")
    tools = None
    if document.get("tools"):
        tools = [_responses_tool(tool) for tool in _listed(document["tools"])]
    talk = Talk(messages, tools, is_whole=document.get("previous_response_id") is None)
    reasoning = document.get("reasoning")
    effort = reasoning.get("effort") if isinstance(reasoning, dict) else None
    _set_variables(talk, defaults, document, {"reasoning_effort": effort})
    return talk


def _put_item(messages: list[dict[str, Any]], item: object) -> None:
    if not isinstance(item, dict):
        raise OddBody("an item of input is an object")
    previous = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    kind = item.get("type", "message")
    if kind == "function_call":
        call = {
            "id": item.get("call_id"),
            "function": {"name": item.get("name"), "arguments": item.get("arguments")},
            "type": "function",
        }
        if previous is None:
            messages.append({"role": "assistant", "tool_calls": [call]})
        else:
            calls = previous.get("tool_calls")
            if isinstance(calls, list):
                calls.append(call)
            else:
                previous["tool_calls"] = [call]
    elif kind == "function_call_output":
        messages.append({"role": "tool", "content": item.get("output"), "tool_call_id": item.get("call_id")})
    elif kind == "reasoning":
        _put_part(messages, previous, "reasoning", _reasoning(item))
    elif kind == "message" and item.get("role") == "assistant":
        content = item.get("content")
        text = (
            content[0].get("text")
            if isinstance(content, list) and content and isinstance(content[0], dict)
            else content
        )
        _put_part(messages, previous, "content", text)
    elif kind == "message" and "role" in item:
        messages.append({name: value for name, value in item.items() if name != "type"})
    else:
        raise OddBody("an item that has no place in a chat")


def _put_part(messages: list[dict[str, Any]], previous: dict[str, Any] | None, name: str, text: object) -> None:
    if previous is not None and previous.get(name) is None:
        previous[name] = text
    else:
        messages.append({"role": "assistant", name: text})


def _reasoning(item: dict[str, Any]) -> str:
    for name in ("content", "summary"):
        parts = item.get(name)
        if isinstance(parts, list) and parts and isinstance(parts[0], dict):
            return str(parts[0].get("text", ""))
    return ""


def _responses_tool(tool: object) -> dict[str, Any]:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        raise OddBody("a tool that is not the client's function")
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


# Messages: blocks become parts, calls and messages of tools.


def _from_messages(document: dict[str, Any], defaults: Mapping[str, Any]) -> Talk:
    messages: list[dict[str, Any]] = []
    system = _system_text(document.get("system"))
    if system:
        messages.append({"role": "system", "content": system})
    for message in _listed(document.get("messages")):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise OddBody("a message is an object with a role")
        _put_message(messages, message["role"], message.get("content"))
    tools = None
    if document.get("tools"):
        tools = [_messages_tool(tool) for tool in _listed(document["tools"])]
    talk = Talk(messages, tools)
    _set_variables(talk, defaults, document, {})
    return talk


def _system_text(system: object) -> str:
    if isinstance(system, str):
        return system
    texts = [block.get("text") for block in system if isinstance(block, dict)] if isinstance(system, list) else []
    return "".join(
        text for text in texts if isinstance(text, str) and not text.startswith("x-anthropic-billing-header")
    )


def _put_message(messages: list[dict[str, Any]], role: str, content: object) -> None:
    if role == "system":
        if text := _system_text(content):
            messages.append({"role": "system", "content": text})
        return
    if isinstance(content, str):
        messages.append({"role": role, "content": content})
        return
    if not isinstance(content, list):
        raise OddBody("content is a text or a list of blocks")
    made: dict[str, Any] = {"role": role}
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for block in content:
        if not isinstance(block, dict):
            raise OddBody("a block is an object")
        match block.get("type"):
            case "text":
                if block.get("text"):
                    parts.append({"type": "text", "text": block["text"]})
            case "image":
                parts.append({"type": "image_url", "image_url": block.get("source")})
            case "thinking":
                thoughts.append(str(block.get("thinking") or ""))
            case "redacted_thinking" | "tool_reference":
                pass
            case "tool_use":
                function = {"name": block.get("name"), "arguments": json.dumps(block.get("input") or {})}
                calls.append({"id": block.get("id"), "type": "function", "function": function})
            case "tool_result":
                _put_result(messages, block)
            case _:
                raise OddBody("a block that has no place in a chat")
    if thoughts:
        made["reasoning"] = "".join(thoughts)
    if calls:
        made["tool_calls"] = calls
    if parts:
        made["content"] = parts[0]["text"] if len(parts) == 1 and "text" in parts[0] else parts
    if role != "user" or parts:
        messages.append(made)


def _put_result(messages: list[dict[str, Any]], block: dict[str, Any]) -> None:
    content = block.get("content")
    pictures = []
    if isinstance(content, list):
        blocks = [item for item in content if isinstance(item, dict)]
        pictures = [
            {"type": "image_url", "image_url": item.get("source")} for item in blocks if item.get("type") == "image"
        ]
        content = "\n".join(str(item.get("text", "")) for item in blocks if item.get("type") == "text")
    messages.append({"role": "tool", "tool_call_id": block.get("tool_use_id") or "", "content": content or ""})
    if pictures:
        messages.append({"role": "user", "content": pictures})


def _messages_tool(tool: object) -> dict[str, Any]:
    if not isinstance(tool, dict) or "input_schema" not in tool:
        raise OddBody("a tool that is not the client's function")
    function = {"name": tool.get("name"), "description": tool.get("description"), "parameters": tool["input_schema"]}
    return {"type": "function", "function": function}
