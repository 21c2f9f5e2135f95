"""ChatML: a conversation as the model of data/tokenizer has it written out, tools and calls included.

Written a second time on purpose, in Python and not in Jinja: it is what the gateway's reading of that model's template
is held against. As vLLM does, parts of content are joined by newlines, tools are written with their members in one
order, and arguments of calls are objects. Messages of Anthropic's shape and items of Responses are brought into the
form of chats first.
"""

import json
from collections.abc import Iterable, Mapping, Sequence

import orjson
import xxhash

Json = object
Message = dict[str, Json]

OPEN, CLOSE = "<|im_start|>", "<|im_end|>\n"
TOOLS_HEAD = "# Tools\n\nYou may call functions. They are, one a line:\n<tools>"
TOOLS_TAIL = (
    "\n</tools>\n\nA call is a JSON object with a name and arguments:\n<tool_call>\n"
    '{"name": ..., "arguments": ...}\n</tool_call>'
)
_TEXTS = ("text", "input_text", "output_text")


def render(messages: Sequence[Json], tools: Json = None, options: Mapping[str, Json] | None = None) -> list[str]:
    """Write a conversation out, in parts that each begin with a token that nothing is merged across.

    Args:
        messages: Of a chat, of Anthropic's shape, or items of Responses.
        options: The body they came in; only what templates are given is looked at.

    Raises:
        ValueError: A message is not an object with a role that the template knows.
    """
    options = options or {}
    given = _one_system(_chat(messages))
    parts: list[str] = []
    if not given:
        raise ValueError("messages")
    is_system_first = given[0]["role"] == "system"
    if isinstance(tools, list) and tools:
        head = f"{given[0]['content']}\n\n" if is_system_first else ""
        lines = "".join(f"\n{_dumped(_tool(tool))}" for tool in tools)
        parts.append(f"{OPEN}system\n{head}{TOOLS_HEAD}{lines}{TOOLS_TAIL}{CLOSE}")
    elif is_system_first:
        parts.append(f"{OPEN}system\n{given[0]['content']}{CLOSE}")
    results: list[str] = []
    last = len(given) - 1
    for at, message in enumerate(given):
        role, content = message["role"], message["content"]
        if role == "tool":
            results.append(f"\n<tool_response>\n{content}\n</tool_response>")
            if at == last or given[at + 1]["role"] != "tool":
                parts.append(f"{OPEN}user{''.join(results)}{CLOSE}")
                results.clear()
        elif role == "assistant":
            parts.append(f"{OPEN}assistant\n{_said(message, is_last=at == last)}{CLOSE}")
        elif role == "user" or (role == "system" and at):
            parts.append(f"{OPEN}{role}\n{content}{CLOSE}")
        elif role != "system":
            raise ValueError(f"messages.{at}")
    if options.get("continue_final_message"):
        parts[-1] = parts[-1].removesuffix(CLOSE)
    elif options.get("add_generation_prompt", True):
        parts.append(f"{OPEN}assistant\n" + ("" if _thinks(options) else "<think>\n\n</think>\n\n"))
    return parts


def _thinks(options: Mapping[str, Json]) -> bool:
    named = options.get("chat_template_kwargs")
    if isinstance(named, dict) and "enable_thinking" in named:
        return named["enable_thinking"] is not False
    return options.get("reasoning_effort") != "none"


def _said(message: Message, *, is_last: bool) -> str:
    thought, content, calls = message.get("reasoning"), message["content"], message.get("tool_calls")
    text = f"<think>\n{str(thought).strip(chr(10))}\n</think>\n\n" if thought and is_last else ""
    text += str(content)
    for at, call in enumerate(calls if isinstance(calls, list) else ()):
        name, arguments = _function(call)
        text += "\n" if at or content else ""
        text += f'<tool_call>\n{{"name": "{name}", "arguments": {_dumped(arguments)}}}\n</tool_call>'
    return text


def _function(call: Json) -> tuple[str, Json]:
    """Give name and arguments of a call; arguments that are no object are none."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise ValueError("tool_calls")
    arguments = function.get("arguments")
    if isinstance(arguments, str) and arguments:
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = {}
    return str(function.get("name")), arguments if isinstance(arguments, dict) else {}


def _tool(tool: Json) -> Json:
    """Write a tool of any of the three shapes as a chat's."""
    if not isinstance(tool, dict):
        raise ValueError("tools")
    function = tool.get("function", tool)
    if not isinstance(function, dict):
        raise ValueError("tools")
    parameters = function.get("parameters", function.get("input_schema"))
    written = {"name": function.get("name"), "description": function.get("description"), "parameters": parameters}
    if function.get("strict") is not None:
        written["strict"] = function["strict"]
    return {"type": "function", "function": written}


def _dumped(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)


def _one_system(messages: list[Message]) -> list[Message]:
    """Put what developers say, and so all systems, at the front: the template does not know developers."""
    if not any(message["role"] == "developer" for message in messages):
        return messages
    leading = [message for message in messages if message["role"] in ("system", "developer")]
    text = "\n\n".join(str(message["content"]) for message in leading if message["content"])
    return [{"role": "system", "content": text}, *(message for message in messages if message not in leading)]


def _chat(messages: Iterable[Json]) -> list[Message]:
    """Bring messages into the form of a chat."""
    chat: list[Message] = []
    for at, message in enumerate(messages):
        if not isinstance(message, dict):
            raise ValueError(f"messages.{at}")
        kind = message.get("type", "message")
        if kind == "function_call":
            _join(chat, "tool_calls", [{"function": message}])
        elif kind == "function_call_output":
            chat.append({"role": "tool", "content": _text(message.get("output"))})
        elif kind == "reasoning":
            _join(chat, "reasoning", _text(message.get("content") or message.get("summary")))
        elif not isinstance(message.get("role"), str):
            raise ValueError(f"messages.{at}")
        elif kind == "message" and "type" in message and message["role"] == "assistant":
            _join(chat, "content", _text(message.get("content")))
        else:
            chat += _blocks(message)
    for message in chat:
        message.setdefault("content", "")
    return chat


def _join(chat: list[Message], name: str, value: Json) -> None:
    """Put what the assistant did into its turn, or into a new one if it has that already."""
    last = chat[-1] if chat and chat[-1]["role"] == "assistant" else None
    if last is not None and name == "tool_calls" and isinstance(last.get(name), list) and isinstance(value, list):
        last[name] = [*_listed(last[name]), *value]
    elif last is not None and not last.get(name):
        last[name] = value
    else:
        chat.append({"role": "assistant", name: value})


def _listed(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _blocks(message: Message) -> list[Message]:
    """Give a message as one of a chat, with the results of tools that it holds before it."""
    content = message.get("content")
    parts = [part for part in _listed(content) if isinstance(part, dict)]
    thoughts = [str(part.get("thinking") or "") for part in parts if part.get("type") == "thinking"]
    calls: list[Json] = [
        {"function": {"name": part.get("name"), "arguments": part.get("input")}}
        for part in parts
        if part.get("type") == "tool_use"
    ]
    results: list[Message] = [
        {"role": "tool", "content": _text(part.get("content"))} for part in parts if part.get("type") == "tool_result"
    ]
    apart = ("thinking", "tool_use", "tool_result", "redacted_thinking")
    kept = [part for part in _listed(content) if not isinstance(part, dict) or part.get("type") not in apart]
    plain: Message = {"role": message["role"], "content": _text(kept if parts else content)}
    if message["role"] == "assistant":
        plain["tool_calls"] = [*_listed(message.get("tool_calls")), *calls]
        plain["reasoning"] = "".join(thoughts) or message.get("reasoning") or message.get("reasoning_content")
    return results if results and not kept else [*results, plain]


def _text(content: Json) -> str:
    """Give the text of content: parts joined by newlines; a picture or sound stands as the hash of what it is."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ValueError("content")
    texts: list[str] = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif not isinstance(part, dict):
            raise ValueError("content")
        elif part.get("type", "text") in _TEXTS or isinstance(part.get("text"), str):
            texts.append(str(part.get("text") or ""))
        elif part.get("type") == "refusal":
            texts.append(str(part.get("refusal") or ""))
        else:
            texts.append(f"<|media:{xxhash.xxh3_64_hexdigest(orjson.dumps(part))}|>")
    return "\n".join(filter(None, texts))
