"""Real conversations, as an agent would hold them again: turn after turn, the history growing."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

import orjson

MIN_OUTPUT_TOKENS = 8
MAX_OUTPUT_TOKENS = 24  # real answers run longer; a demonstration is watched
BYTES_PER_TOKEN = 4

SYSTEM_PROMPTS = {
    "swe": (
        "You are a careful software engineer. You work in a checkout of the project in front of you, through a shell: "
        "read before you write, change as little as the task needs, run the tests that cover what you touched, and say "
        "plainly what you did and what you could not do. Answer with one command at a time, in a fenced block, and a "
        "sentence on why. Never touch files outside the checkout, never use the network."
    ),
    "tau": (
        "You are a customer service agent. Help with bookings, orders, returns and addresses within the policy. Find "
        "out who the customer is before you look anything up; say what you are about to change and wait for a yes; do "
        "one thing at a time; hand over to a person when the policy does not cover the case. Use only what the tools "
        "return: do not make anything up, and do not give advice that was not asked for."
    ),
}


@dataclass(frozen=True, slots=True)
class Turn:
    """One thing that was asked, and what the model said."""

    asked: str
    said: str

    @property
    def output_tokens(self) -> int:
        """How long the answer was, kept within what one likes to watch."""
        return max(MIN_OUTPUT_TOKENS, min(MAX_OUTPUT_TOKENS, len(self.said.encode()) // BYTES_PER_TOKEN))


@dataclass(frozen=True, slots=True)
class Conversation:
    """One session."""

    name: str
    system: str
    turns: tuple[Turn, ...]

    def histories(self, user: str | None = None) -> Iterator[list[dict[str, str]]]:
        """Give the messages of each call: all turns before it, and what is asked.

        Args:
            user: Who signs the first turn: then only the system prompt is shared with others in the same trouble.
        """
        messages = [{"role": "system", "content": self.system}]
        for turn in self.turns:
            signed = f"I am {user}. " if user and len(messages) == 1 else ""
            messages.append({"role": "user", "content": signed + turn.asked})
            yield list(messages)
            messages.append({"role": "assistant", "content": turn.said})

    def bodies(self, model: str, user: str | None = None) -> Iterator[bytes]:
        """Give the body of each call, in the official client's form; answers get the length they really had."""
        for turn, messages in zip(self.turns, self.histories(user), strict=True):
            yield orjson.dumps(
                {
                    "messages": messages,
                    "model": model,
                    "max_completion_tokens": turn.output_tokens,
                    "ignore_eos": True,
                    "stream": True,
                    "stream_options": {"include_usage": True},
                }
            )


def load_conversations() -> list[Conversation]:
    """Read the sessions that ship with Kvlane."""
    found = []
    for file in sorted((files("loadtests") / "data" / "conversations").iterdir(), key=lambda file: file.name):
        if not file.name.endswith(".jsonl"):
            continue
        rows = [orjson.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        turns = tuple(Turn(row["input"], row["output"]) for row in rows if row["input"] and row["output"])
        found.append(Conversation(file.name.removesuffix(".jsonl"), SYSTEM_PROMPTS[file.name[:3]], turns))
    return found
