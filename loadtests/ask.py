"""Ask: what a client asks a simulated engine to generate, read from any of its dialects."""

from dataclasses import dataclass

from loadtests import refusals
from loadtests.tokens import Json
from loadtests.vocabulary import OWN, Vocabulary

Body = dict[str, Json]


@dataclass(slots=True)
class Ask:
    """One request for generation."""

    model: str
    prompts: list[list[bytes]]
    """Tokens of each prompt; only completions have more than one."""
    max_tokens: int | None = None
    n: int = 1
    is_stream: bool = False
    includes_usage: bool = False
    continuous_usage: bool = False
    ignores_eos: bool = False
    echo: bool = False
    salt: str = ""
    seed: int = 0
    output_tokens: int | None = None
    """What the test wants: `sim.output_tokens`."""
    alphabet: str | None = None
    """Of the answer: `sim.alphabet`."""
    text: str | None = None
    """The answer, over and over: `sim.text`."""
    reasoning_tokens: int = 0
    """Leading tokens that are reasoning: `sim.reasoning_tokens`."""
    tool: str | None = None
    """Name of a tool to call instead of talking: `sim.tool`."""
    is_base64: bool = False
    """How embeddings are to be coded."""
    vocabulary: Vocabulary = OWN
    """What the prompts were cut with."""


def number(body: Body, name: str, least: int = 0) -> int | None:
    """Read an integer, if it is there.

    Raises:
        Refused: It is no integer, or below `least`.
    """
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise refusals.bad_type(name, "int_type", "Input should be a valid integer", value)
    if value < least:
        raise refusals.bad_request(
            f"{name} must be at least {least}, got {value}. (parameter={name}, value={value})", name
        )
    return value


def flag(body: Body, name: str) -> bool:
    """Read a boolean; absent and null are false."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise refusals.bad_type(name, "bool_type", "Input should be a valid boolean", value)
    return bool(value)


def read(body: Body, prompts: list[list[bytes]], max_tokens: int | None, vocabulary: Vocabulary = OWN) -> Ask:
    """Read what all dialects share.

    Raises:
        Refused: A field is wrong.
    """
    model = body.get("model")
    if not isinstance(model, str):
        raise refusals.missing("model")
    temperature = body.get("temperature")
    if isinstance(temperature, int | float) and temperature < 0:
        value = float(temperature)
        raise refusals.bad_request(
            f"temperature must be non-negative, got {value}. (parameter=temperature, value={value})", "temperature"
        )
    ask = Ask(model, prompts, max_tokens, is_stream=flag(body, "stream"), ignores_eos=flag(body, "ignore_eos"))
    ask.vocabulary = vocabulary
    ask.n = number(body, "n", 1) or 1
    ask.seed = number(body, "seed", -(1 << 63)) or 0
    salt = body.get("cache_salt")
    if salt is not None:
        if not isinstance(salt, str) or not salt:
            raise refusals.bad_request(
                "Parameter 'cache_salt' must be a non-empty string if provided. (parameter=cache_salt)", "cache_salt"
            )
        ask.salt = salt
    options = body.get("stream_options")
    if options is not None:
        if not ask.is_stream:
            raise refusals.bad_request(
                "Stream options can only be defined when `stream=True`. (parameter=stream_options)", "stream_options"
            )
        if isinstance(options, dict):
            ask.includes_usage = bool(options.get("include_usage"))
            ask.continuous_usage = ask.includes_usage and bool(options.get("continuous_usage_stats"))
    wish = body.get("sim")
    if isinstance(wish, dict):
        ask.output_tokens = number(wish, "output_tokens", 1)
        ask.reasoning_tokens = number(wish, "reasoning_tokens") or 0
        ask.alphabet = wish["alphabet"] if isinstance(wish.get("alphabet"), str) else None
        ask.tool = wish["tool"] if isinstance(wish.get("tool"), str) else None
        ask.text = wish["text"] if isinstance(wish.get("text"), str) else None
    return ask


def completion_prompts(prompt: Json, vocabulary: Vocabulary) -> list[list[bytes]]:
    """Read a completion's prompt: str, [str], [int] or [[int]].

    Raises:
        Refused: It is none of these, or empty.
    """
    if isinstance(prompt, str):
        return [vocabulary.cut(prompt)]
    if not isinstance(prompt, list) or not prompt:
        raise refusals.bad_type("prompt", "string_type", "Input should be a valid string", prompt)
    if all(isinstance(item, int) for item in prompt):
        return [vocabulary.from_ids(prompt)]
    if all(isinstance(item, str) for item in prompt):
        return [vocabulary.cut(item) for item in prompt]
    if all(isinstance(item, list) and all(isinstance(id, int) for id in item) for item in prompt):
        return [vocabulary.from_ids(item) for item in prompt]
    raise refusals.bad_type("prompt", "string_type", "Input should be a valid string", prompt[0])
