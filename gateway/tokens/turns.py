"""What a rendered conversation looks like: where its head ends, and where the first turn of the user does.

Found out once, by rendering a conversation of known words. From then on head and opening are found in the text alone,
so that a completion whose prompt is a rendered conversation gets the keys of the chat.

    <|im_start|>system\\nSYSTEM<|im_end|>\\n <|im_start|>user\\nUSER<|im_end|> \\n<|im_start|>assistant\\n
    head                                   marker            ...  close

Some templates put system prompt or tools elsewhere: before the last message (Mistral), into the first of the user
(Llama 3). Then the head does not tell them apart, and `holds_system` and `holds_tools` say so.
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
    holds_system: bool
    """Whether the system prompt is in the head, always."""
    holds_tools: bool
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
    if not tokens:
        return None
    pattern = re.compile("|".join(re.escape(token) for token in sorted(tokens, key=len, reverse=True)))
    for system in (SYSTEM, None):  # a system prompt that is put elsewhere can hide how turns begin
        text = _render(template, system, USER, ANSWER, NEXT)
        found = None if text is None else _found(text, pattern)
        if found is not None:
            break
    else:
        return None
    marker, close, openers = found
    bare = _render(template, None, USER) or ""
    bare_heads = frozenset([bare[: bare.find(marker)]]) if marker in bare else frozenset()
    holds_system, holds_tools = _held(templates, marker)
    return Turns(marker, close, bare_heads, holds_system, holds_tools, openers)


def _found(text: str, pattern: re.Pattern[str]) -> tuple[str, str, frozenset[str]] | None:
    """Find marker, close and openers in a rendered conversation."""
    before_user = text[: max(text.find(USER), 0)].rpartition(SYSTEM)[2]
    before_answer, before_next = _between(text, USER, ANSWER), _between(text, ANSWER, NEXT)
    if before_answer is None or before_next is None:
        return None
    closing = pattern.search(before_answer)
    for start in reversed([match.start() for match in pattern.finditer(before_next)]):
        marker = before_next[start:]
        if closing and before_user.endswith(marker) and not before_answer.endswith(marker):
            gaps = (before_user, before_answer, before_next)
            openers = {found[-1] for gap in gaps if (found := pattern.findall(gap))}
            return marker, before_answer[: closing.end()], frozenset(openers)
    return None


def _held(templates: ChatTemplates, marker: str) -> tuple[bool, bool]:
    """Whether system prompt and tools are before the first turn of the user, in short and in long conversations."""
    heads = []
    for has_tool in (False, True):
        try:
            template = templates.choose(has_tools=has_tool)
        except NotRendered:
            return False, False
        for said in ((USER,), (USER, ANSWER, NEXT)):
            text = _render(template, SYSTEM, *said, has_tool=has_tool) or ""
            heads.append((text[: max(text.find(marker), 0)], has_tool))
    holds_system = all(SYSTEM in head for head, _ in heads)
    return holds_system, all(TOOL in head for head, has_tool in heads if has_tool)


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
