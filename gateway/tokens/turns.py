"""What a rendered conversation looks like: where its head ends, and where the first turn of the user does.

Found out once, by rendering a conversation of known words. From then on head and opening are found in the text alone,
so that a completion whose prompt is a rendered conversation gets the keys of the chat.

    <|im_start|>system\\nSYSTEM<|im_end|>\\n <|im_start|>user\\nUSER<|im_end|> \\n<|im_start|>assistant\\n
    head                                   marker            ...  close

Some templates put system prompt or tools elsewhere: before the last message (Mistral), into the first of the user
(Llama 3). Then the head does not tell them apart, and `holds_all` says so.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from gateway.tokens.content import normalise, normalise_tools
from gateway.tokens.template import ChatTemplate, ChatTemplates, NotRendered

SYSTEM, USER, ANSWER, NEXT, TOOL = "Systemprobe", "Userprobe", "Answerprobe", "Nextprobe", "toolprobe"


@dataclass(frozen=True, slots=True)
class Turns:
    """How a template writes turns."""

    marker: str
    """What stands before each text of the user, and of nobody else."""
    close: str
    """What the end of a user's text begins with."""
    bare_heads: frozenset[str]
    """Heads of conversations without system prompt and tools."""
    holds_all: bool
    """Whether system prompt and tools are in the head, always."""
    openers: frozenset[str]
    """Tokens that turns begin with: the last before each text."""

    def head_of(self, text: str) -> str | None:
        """Give what is before the first turn of the user; None: nobody's turn is in it."""
        at = text.find(self.marker)
        return None if at < 0 else text[:at]

    def opening_of(self, text: str, head: str) -> str:
        """Give the head with the first turn of the user."""
        end = text.find(self.close, len(head) + len(self.marker))
        return text if end < 0 else text[:end]


def learn(templates: ChatTemplates, tokens: Collection[str]) -> Turns | None:
    """Render a conversation and look at it.

    Args:
        templates: The model's.
        tokens: What the tokenizer finds in text as it stands.
    Returns:
        None where the template shows no turns.
    """
    try:
        template = templates.choose(has_tools=False)
    except NotRendered:
        return None
    text = _render(template, SYSTEM, USER, ANSWER, NEXT) or _render(template, None, USER, ANSWER, NEXT)
    bare = _render(template, None, USER) or ""
    if text is None or not tokens:
        return None
    pattern = re.compile("|".join(re.escape(token) for token in sorted(tokens, key=len, reverse=True)))
    before_user = text[: text.find(USER)]
    if SYSTEM in before_user:
        before_user = before_user[before_user.index(SYSTEM) + len(SYSTEM) :]
    before_answer = _between(text, USER, ANSWER)
    before_next = _between(text, ANSWER, NEXT)
    if before_answer is None or before_next is None:
        return None
    starts = [match.start() for match in pattern.finditer(before_next)]
    marker = next(
        (
            before_next[start:]
            for start in reversed(starts)
            if before_user.endswith(before_next[start:]) and not before_answer.endswith(before_next[start:])
        ),
        None,
    )
    closing = pattern.search(before_answer)
    if marker is None or closing is None:
        return None
    openers = {found[-1] for gap in (before_user, before_answer, before_next) if (found := pattern.findall(gap))}
    bare_heads = frozenset([bare[: bare.find(marker)]]) if marker in bare else frozenset()
    return Turns(marker, before_answer[: closing.end()], bare_heads, _holds_all(templates, marker), frozenset(openers))


def _holds_all(templates: ChatTemplates, marker: str) -> bool:
    try:
        template = templates.choose(has_tools=True)
    except NotRendered:
        return False
    for said in ((USER,), (USER, ANSWER, NEXT)):
        text = _render(template, SYSTEM, *said, has_tool=True)
        if text is None or marker not in text:
            return False
        head = text[: text.find(marker)]
        if SYSTEM not in head or TOOL not in head:
            return False
    return True


def _between(text: str, one: str, other: str) -> str | None:
    start, end = text.find(one), text.find(other)
    return None if start < 0 or end < start else text[start + len(one) : end]


def _render(template: ChatTemplate, system: str | None, *said: str, has_tool: bool = False) -> str | None:
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    messages += [{"role": "assistant" if at % 2 else "user", "content": content} for at, content in enumerate(said)]
    tools = [{"type": "function", "function": {"name": TOOL, "description": "", "parameters": {}}}]
    given = normalise(messages, [], by_part=template.is_by_part, knows_developers=template.knows_developers)
    try:
        return template.render(given, normalise_tools(tools) if has_tool else None, add_generation_prompt=False)
    except NotRendered:
        return None
