"""Bodies that a reader and an engine must read alike; each shows one thing that engines do before they tokenize."""

from typing import Any

Body = dict[str, Any]

HELLO: Body = {"role": "user", "content": "Which way to Dover?"}
SYSTEM: Body = {"role": "system", "content": "You are a guide.\nBe brief; say no more than is asked."}
ANSWER: Body = {"role": "assistant", "content": "South-east, my lord."}
TOOL: Body = {
    "type": "function",
    "function": {
        "name": "find_way",
        "description": "Find a way from one place to another",
        "parameters": {
            "type": "object",
            "properties": {"to": {"type": "string"}, "from": {"type": "string", "default": "hérë"}},
            "required": ["to"],
        },
    },
}
OTHER_TOOL: Body = {
    "function": {"parameters": {"z": 1, "a": {"é": 1.0}}, "name": "tell_time", "strict": True, "further": 1},
    "more": 2,
    "type": "function",
}
BARE_TOOL: Body = {"type": "function", "function": {"name": "rest"}}
CALL: Body = {
    "type": "function",
    "id": "call_1",
    "function": {"name": "find_way", "arguments": '{"to": "Dover", "from": "Löndon", "n": [1, 2.50, null, true]}'},
}
RESULT: Body = {"role": "tool", "tool_call_id": "call_1", "content": '{"miles": 78}'}


def text(said: str, **fields: object) -> Body:
    """Make a part of content."""
    return {"type": "text", "text": said, **fields}


def user(content: object) -> Body:
    """Make a message of the user."""
    return {"role": "user", "content": content}


CHATS: dict[str, Body] = {
    "one message": {"messages": [HELLO]},
    "a system prompt": {"messages": [SYSTEM, HELLO]},
    "three turns": {"messages": [SYSTEM, HELLO, ANSWER, user("And back?")]},
    "no generation prompt": {"messages": [SYSTEM, HELLO], "add_generation_prompt": False},
    "tools": {"messages": [HELLO], "tools": [TOOL, OTHER_TOOL, BARE_TOOL]},
    "tools and a system prompt": {"messages": [SYSTEM, HELLO], "tools": [TOOL]},
    "a call and its result": {
        "messages": [SYSTEM, HELLO, {"role": "assistant", "content": None, "tool_calls": [CALL]}, RESULT],
        "tools": [TOOL],
    },
    "calls with words": {
        "messages": [
            HELLO,
            {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL, {**CALL, "id": "call_2"}]},
            RESULT,
            {"role": "tool", "tool_call_id": "call_2", "content": [text("one"), text("two")]},
            ANSWER,
            user("Thanks."),
        ],
        "tools": [TOOL, OTHER_TOOL],
    },
    "a call without content": {"messages": [HELLO, {"role": "assistant", "tool_calls": [CALL]}, RESULT]},
    "a call with broken arguments": {
        "messages": [
            HELLO,
            {
                "role": "assistant",
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "[1"}}],
            },
            {"role": "tool", "tool_call_id": "c", "content": "?"},
        ]
    },
    "calls that are none": {"messages": [HELLO, {**ANSWER, "tool_calls": []}, HELLO]},
    "parts": {"messages": [SYSTEM, user([text("one"), text(""), text("two", cache_control={"type": "ephemeral"})])]},
    "parts of a system prompt": {
        "messages": [{"role": "system", "content": [text("Be brief."), text("And kind.")]}, HELLO]
    },
    "parts of an answer": {
        "messages": [
            HELLO,
            {"role": "assistant", "content": [text("No,"), {"type": "refusal", "refusal": "never."}]},
            HELLO,
        ]
    },
    "reasoning": {
        "messages": [HELLO, {**ANSWER, "reasoning": "Dover is south-east of London.\n"}, user("Sure?")],
    },
    "reasoning last": {
        "messages": [HELLO, {**ANSWER, "reasoning": "Hm."}],
        "add_generation_prompt": False,
    },
    "thinking in the content": {
        "messages": [HELLO, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes."}, user("Sure?")]
    },
    "a name": {"messages": [{**HELLO, "name": "kent"}]},
    "fields that nobody knows": {"messages": [{**HELLO, "weight": 1, "refusal": None}]},
    "developer": {"messages": [{"role": "developer", "content": "Answer in verse."}, HELLO]},
    "developer after system": {"messages": [SYSTEM, {"role": "developer", "content": "Answer in verse."}, HELLO]},
    "variables": {
        "messages": [HELLO],
        "chat_template_kwargs": {"enable_thinking": False, "unknown": "x", "eos_token": "!"},
    },
    "variables that are unset": {
        "messages": [HELLO],
        "chat_template_kwargs": {"enable_thinking": None, "thinking": "auto"},
    },
    "thinking asked for": {"messages": [HELLO], "chat_template_kwargs": {"enable_thinking": True, "thinking": True}},
    "a final message to continue": {
        "messages": [HELLO, {"role": "assistant", "content": "Take the road to"}],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
    "a final message that ends in blanks": {
        "messages": [HELLO, {"role": "assistant", "content": "Take the road to  "}],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
    "special tokens asked for": {"messages": [HELLO], "add_special_tokens": True},
    "special tokens as text": {
        "messages": [user("<|im_start|>system\nhi<|im_end|> <|endoftext|><tool_call> </think>")]
    },
    "many languages": {
        "messages": [
            user(
                "naïve café 从前有座山 日本語 한국어 עברית हिन्दी 🙂👩‍👩‍👧‍👦 e\u0301 ﬁ ½ \u00a0\u3000 \ufeff \U0001f3f3"
            )
        ]
    },
    "blanks": {"messages": [user("  a\t\tb \n\n\n c   \r\n "), {"role": "assistant", "content": "  x  "}, user("\n")]},
    "nothing said": {"messages": [user("")]},
    "code and digits": {"messages": [user("def f(x):\n    return x ** 2  # 1234567890\n\n\nprint(f(3.14159))")]},
    "an old billing line": {
        "messages": [{"role": "system", "content": "x-anthropic-billing-header: cch=1234;\nBe brief."}, HELLO]
    },
    "html in tools": {
        "messages": [HELLO],
        "tools": [{"type": "function", "function": {"name": "f", "description": "a <b> & 'c' \"d\" é \u2028"}}],
    },
}
"""Bodies of /tokenize and of chats."""

PROMPTS: dict[str, Body] = {
    "a prompt": {"prompt": "Once upon a time there was a gateway."},
    "a prompt without special tokens": {"prompt": "Once upon a time", "add_special_tokens": False},
    "no prompt": {"prompt": ""},
    "a prompt that is a rendered chat": {"prompt": "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"},
    "a prompt of blanks": {"prompt": "  \n\n  x  "},
    "a prompt in Chinese": {"prompt": "浮云终日行，游子久不至。"},
}
"""Bodies of /tokenize and of completions."""
