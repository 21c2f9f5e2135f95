"""What is outstanding on each endpoint: charged at dispatch, moved at the first token, given back at the end.

The figures are this gateway's own and exact, and so they are the truth between two polls of the engines: a poll is old
when it arrives, and lags whenever an engine is busy.
"""

from policies.endpoint import Endpoint
from policies.request import InferenceRequest


def dispatch(endpoint: Endpoint, request: InferenceRequest) -> None:
    """Charge a request that is about to be sent."""
    books = endpoint.outstanding
    books.requests += 1
    books.prefill_tokens += request.prompt_tokens


def first_token(endpoint: Endpoint, request: InferenceRequest) -> None:
    """Move a charged request from prefill to decode."""
    books = endpoint.outstanding
    books.prefill_tokens -= request.prompt_tokens
    books.decoding += 1


def finish(endpoint: Endpoint, request: InferenceRequest, *, is_decoding: bool) -> None:
    """Give back what a request was charged, however it ended."""
    books = endpoint.outstanding
    books.requests -= 1
    if is_decoding:
        books.decoding -= 1
    else:
        books.prefill_tokens -= request.prompt_tokens
    assert books.requests >= 0
    assert books.prefill_tokens >= 0
    assert books.decoding >= 0
