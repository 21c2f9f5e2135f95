"""Retold: real conversations as the workload of a simulation: the tokens, lengths and pauses that a replay has.

Prompts are cut and their blocks named by the engine's own code, so that virtual time finds in its caches what the
engines behind HTTP find.
"""

from collections.abc import Iterator, Sequence
from random import Random

from loadtests.replay import Session
from loadtests.scenario import Lengths, Systems, Talks
from loadtests.tokens import chain, root
from loadtests.vocabulary import Vocabulary
from loadtests.workloads import Job, Talk, Text, Texts

MODEL = "sim"
_UNUSED = Lengths(mean=1, sigma=0, least=1, most=1)
_SPEC = Talks(
    kind="talks",
    systems=Systems(count=1, zipf=0, tokens=_UNUSED),
    user=_UNUSED,
    output=_UNUSED,
    turns_mean=1,
    turns_most=1,
    think_s=0,
    think_mean_s=1,
)


class RetoldTalk(Talk):
    """A session's turns, one by one. Nothing is drawn: what a talk would draw is what was said."""

    def __init__(self, session: Session, vocabulary: Vocabulary) -> None:
        super().__init__(_SPEC, Text(0, ()), Texts(), Random(0))
        self._session = session
        self._prompts = [
            vocabulary.talk(messages, None, {}) for messages in session.conversation.histories(session.user)
        ]
        system, _ = next(session.conversation.histories(session.user))
        self._system_size = len(vocabulary.talk([system], None, {"add_generation_prompt": False}))
        self._opening_size = len(self._prompts[0])
        self.turns_left = len(self._prompts)

    def next(self, at: float) -> Job:
        """Take the next turn."""
        turn = len(self._prompts) - self.turns_left
        self.turns_left -= 1
        prompt = self._prompts[turn]
        output = self._session.conversation.turns[turn].output_tokens
        blocks = chain(prompt, root(MODEL, ""))
        return Job(at, "retold", len(prompt), output, blocks, self._system_size, self._opening_size, self)

    def think_s(self) -> float:
        """Give the pause after the turn that was taken last."""
        return self._session.thinks_s[len(self._prompts) - self.turns_left - 1]


class RetoldSource:
    """All sessions, each from when it begins."""

    def __init__(self, sessions: Sequence[Session], vocabulary: Vocabulary) -> None:
        self._sessions, self._vocabulary = sessions, vocabulary

    def jobs(self, rate: float, duration_s: float) -> Iterator[Job]:
        """Give the first turns, in order; neither rate nor duration change what was said."""
        for session in sorted(self._sessions, key=lambda session: session.begins_s):
            yield RetoldTalk(session, self._vocabulary).next(session.begins_s)
