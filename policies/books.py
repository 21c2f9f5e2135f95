"""What is outstanding on each endpoint: charged at dispatch, moved at the first token, given back at the end.

The figures are exact and our own, and so they are the truth between two polls of the engines: a poll is old when it
arrives, and lags whenever an engine is busy. What other gateways report is charged by the same three functions.

    dispatch -> Charge, prefilling -> first_token -> decoding -> finish
                                   -----------------------------> finish

Each step costs O(1), and O(units) for the count of distinct KV units that requests in flight hold. Steps also teach the
endpoint's WorkModel: the first token of a prompt that nobody was ahead of, and the mean step of a finished stream less
the prefills it was held up by. For admission they tell what share of its time an engine spends on prefills, and how
much slower streams are than step and share say (`slip`).
"""

from policies.endpoint import PREFILL_MEMORY_S, Charge, Endpoint
from policies.request import BlockHash, InferenceRequest
from policies.work import moved

MIN_CACHED_LEFT = 16  # an engine computes at least one block anew, however much it has
MIN_PREFILL_TOKENS = 256  # shorter prompts take one step whatever their length: they teach nothing of prefill
MIN_PREFILL_STEPS = 2.0  # in decode steps: requests are sent when a step has ended, and wait for more or less than half
MIN_STREAM_TOKENS = 16  # nor does a stream of a few steps teach what a step takes


def dispatch(endpoint: Endpoint, request: InferenceRequest, now: float, cached_tokens: int = 0) -> Charge:
    """Charge a request that is about to be sent, of whose prompt so much is expected to be cached there."""
    books = endpoint.outstanding
    prompt = request.prompt_tokens
    uncached = max(prompt - cached_tokens, min(MIN_CACHED_LEFT, prompt))
    prefill_s = endpoint.work.prefill_s(uncached, prompt - uncached)
    charge = Charge(endpoint, request, prompt - uncached, uncached, prefill_s, now, not books.prefilling)
    if not books.prefilling:
        books.head_since = now
    _count_steps(endpoint, now)
    books.requests += 1
    books.prefill_tokens += uncached
    books.prefill_s += prefill_s
    books.prefilling[charge] = None
    books.context_tokens += prompt
    books.growth_tokens += uncached + request.output_tokens // 2
    books.pinned_tokens += _pin(books.pinned, request.prefix) * request.unit_tokens + _tail(request)
    endpoint.outlook = None
    return charge


def first_token(charge: Charge, now: float, *, is_seen: bool = True) -> None:
    """Move a charged request from prefill to decode.

    Args:
        is_seen: False where it must have come by now but nobody could see it: answers that are not streamed. Nothing is
            learned from those.
    """
    assert charge.first_token_at is None
    endpoint, books = charge.endpoint, charge.endpoint.outstanding
    half = charge.request.output_tokens // 2
    charge.was_seen = is_seen
    step_s = endpoint.work.step_s(books.decoding, books.context_tokens)
    is_long = charge.uncached_tokens >= MIN_PREFILL_TOKENS and charge.prefill_s >= MIN_PREFILL_STEPS * step_s
    if is_seen and charge.was_first and is_long:
        endpoint.work.observe_prefill(charge.prefill_s + 1.5 * step_s, now - charge.dispatched_at)
    _end_prefill(charge, now)
    _count_steps(endpoint, now)
    books.prefilled_s += charge.prefill_s
    books.prefill_share = books.share_of_prefill(now) + charge.prefill_s / PREFILL_MEMORY_S
    books.shared_at = now
    books.decoding += 1
    books.context_tokens += half
    books.begun_steps += books.steps
    charge.begun_steps = books.steps
    charge.first_token_at = now
    charge.prefilled_s = books.prefilled_s
    charge.step_s = endpoint.work.step_s(books.decoding, books.context_tokens)
    endpoint.outlook = None


def finish(charge: Charge, now: float, output_tokens: int | None = None) -> None:
    """Give back what a request was charged, however it ended.

    Args:
        output_tokens: What it produced; None when that is not known, or it did not end by itself.
    """
    endpoint, request, books = charge.endpoint, charge.request, charge.endpoint.outstanding
    half = request.output_tokens // 2
    _count_steps(endpoint, now)
    if charge.first_token_at is None:
        _end_prefill(charge, now)
    else:
        if charge.was_seen and output_tokens is not None and output_tokens >= MIN_STREAM_TOKENS:
            own_s = now - charge.first_token_at - (books.prefilled_s - charge.prefilled_s)
            last = endpoint.work.step_s(books.decoding, books.context_tokens)
            step_s = (charge.step_s + last) / 2
            endpoint.work.observe_decode(step_s, own_s / (output_tokens - 1))
            token_s = (now - charge.first_token_at) / (output_tokens - 1)
            books.slip = moved(books.slip, books.slip * step_s / (1 - books.share_of_prefill(now)), token_s)
        books.decoding -= 1
        books.context_tokens -= half
        books.begun_steps = books.begun_steps - charge.begun_steps if books.decoding else 0.0
    books.requests -= 1
    books.context_tokens -= request.prompt_tokens
    books.growth_tokens -= charge.uncached_tokens + half
    books.pinned_tokens -= _unpin(books.pinned, request.prefix) * request.unit_tokens + _tail(request)
    assert books.requests >= 0
    assert books.decoding >= 0
    assert books.pinned_tokens >= 0
    endpoint.outlook = None


def _count_steps(endpoint: Endpoint, now: float) -> None:
    """Count the decode steps since something last changed."""
    books = endpoint.outstanding
    if books.decoding:
        books.steps += (now - books.stepped_at) / endpoint.work.step_s(books.decoding, books.context_tokens)
    books.stepped_at = now


def _end_prefill(charge: Charge, now: float) -> None:
    books = charge.endpoint.outstanding
    if next(iter(books.prefilling)) is charge:
        books.head_since = now
    del books.prefilling[charge]
    books.prefill_tokens -= charge.uncached_tokens
    # A sum of floats drifts: it is exact again whenever nothing is waiting.
    books.prefill_s = max(0.0, books.prefill_s - charge.prefill_s) if books.prefilling else 0.0


def _tail(request: InferenceRequest) -> int:
    """Count the prompt tokens behind the last full unit."""
    return max(0, request.prompt_tokens - len(request.prefix) * request.unit_tokens)


def _pin(pinned: dict[BlockHash, int], prefix: tuple[BlockHash, ...]) -> int:
    """Pin the units of a prompt, and count those that nobody held.

    Unit by unit, though a prompt's units are held in their order: a client can make ids whose hashes repeat.
    """
    new = 0
    for unit in prefix:
        held = pinned.get(unit, 0)
        pinned[unit] = held + 1
        new += not held
    return new


def _unpin(pinned: dict[BlockHash, int], prefix: tuple[BlockHash, ...]) -> int:
    """Give the units of a prompt back, and count those that nobody holds now."""
    free = 0
    for unit in prefix:
        held = pinned[unit] - 1
        if held:
            pinned[unit] = held
        else:
            del pinned[unit]
            free += 1
    return free
