"""births: turn what a client asks for into sequences of the model, or refuse it.

How long an answer gets is a seeded draw from the prompt (lognormal, sigma .8, as in our workloads), unless
the client or the test says otherwise; so is every word of it. The ids of its blocks are the chained hashes
of the prompt's tokens and of the words to come, so that the next turn of a conversation finds them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log
from random import Random

import xxhash

from loadtests import refusals
from loadtests.ask import Ask
from loadtests.kvcache import BLOCK_TOKENS
from loadtests.sequence import Generation
from loadtests.tokens import ALPHABETS, chain, root
from loadtests.wire import Choice

SIGMA = 0.8
SHARED_OUTPUT_TOKENS = 4096  # of longer answers the rest is not hashed: nobody continues them, and it takes time


@dataclass(frozen=True, slots=True)
class Birth:
    """A sequence about to be."""

    choice: Choice
    generation: Generation

    def cut_to_choice(self) -> Generation:
        """Give the generation, shorter where the choice has been shortened since."""
        return replace(self.generation, output_tokens=self.choice.output_tokens)


def births(
    ask: Ask, max_context_tokens: int, mean_output_tokens: int, alphabet: str, new_id: Callable[[], int]
) -> list[Birth]:
    """Make the sequences of a request.

    Raises:
        Refused: A prompt, or what is asked for it, does not fit the context.
    """
    limits = [_limit(ask, len(prompt), max_context_tokens) for prompt in ask.prompts]
    born: list[Birth] = []
    for at, (prompt, limit) in enumerate(zip(ask.prompts, limits, strict=True)):
        start = root(ask.model, ask.salt)
        blocks = chain(prompt, start)
        tail = prompt[len(blocks) * BLOCK_TOKENS :]
        last = blocks[-1] if blocks else start
        for copy in range(ask.n):
            seed = xxhash.xxh3_64_intdigest(b"%d %d " % (ask.seed, copy) + b"".join(tail), last)
            kind = ask.alphabet if ask.alphabet in ALPHABETS else alphabet
            language = ask.vocabulary.language(seed, kind or "words", ask.text)
            output = _output_tokens(ask, limit, mean_output_tokens, seed)
            made = [language.token(n) for n in range(min(output - 1, SHARED_OUTPUT_TOKENS))]
            ids = blocks + chain(tail + made, last)
            generation = Generation(new_id(), len(prompt), output, limit, ids)
            assert isinstance(generation.id, int)
            reason = "length" if output == limit else "stop"
            choice = Choice(generation.id, at * ask.n + copy, at, language, output, reason)
            born.append(Birth(choice, generation))
    return born


def _limit(ask: Ask, prompt_tokens: int, max_context_tokens: int) -> int:
    """Say how many tokens an answer may have."""
    if not prompt_tokens:
        raise refusals.bad_request("The decoder prompt cannot be empty", "prompt")
    asked = ask.max_tokens
    if prompt_tokens > max_context_tokens or (prompt_tokens == max_context_tokens and asked != 0):
        raise refusals.prompt_too_long(max_context_tokens)
    if asked is None:
        return max_context_tokens - prompt_tokens
    if asked > max_context_tokens:
        raise refusals.output_too_long(max_context_tokens, asked)
    if prompt_tokens + asked > max_context_tokens:
        raise refusals.sum_too_long(max_context_tokens, prompt_tokens, asked)
    return asked


def _output_tokens(ask: Ask, limit: int, mean: int, seed: int) -> int:
    """Say how many tokens an answer will have."""
    if ask.output_tokens is not None:
        return min(ask.output_tokens, limit)
    if ask.ignores_eos or not limit:
        return limit
    drawn = Random(seed).lognormvariate(log(mean) - SIGMA * SIGMA / 2, SIGMA)
    return max(1, min(int(drawn), limit))
