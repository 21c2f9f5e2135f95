"""Lease: one request's charge on one endpoint.

A context manager; leaving it, in whatever way, gives back exactly what was charged, exactly once. It belongs to the
Endpoint it was taken on: when an engine restarts, its Endpoint is replaced by a new one with clean books, and old
leases end on the old one.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from gateway.members import Member
from gateway.usage import Usage
from policies import books
from policies.endpoint import Endpoint
from policies.policy import Choice
from policies.request import InferenceRequest


class Lease:
    """One request's charge on one endpoint."""

    __slots__ = ("_charge", "_clock", "_held_before", "_is_open", "_is_refused", "_output_tokens", "choice", "member")

    def __init__(self, member: Member, choice: Choice, request: InferenceRequest, clock: Callable[[], float]) -> None:
        now = clock()
        index = member.pool.index
        self.member = member
        self._output_tokens: int | None = None
        if choice.cached_tokens is None and request.prompt_tokens:
            held = index.matched_on(choice.endpoint, request.prefix) * request.unit_tokens
            choice = choice._replace(cached_tokens=held)
        self.choice = choice
        self._clock = clock
        self._is_open = True
        self._is_refused = False
        self._held_before = index.matched_on(choice.endpoint, request.prefix) if request.prefix else 0
        self._charge = books.dispatch(choice.endpoint, request, now, choice.cached_tokens or 0)
        index.learn(choice.endpoint, request.prefix, now)
        member.leases_total += 1
        member.pool.lately.append(request)

    @property
    def endpoint(self) -> Endpoint:
        """The incarnation that was charged."""
        return self.choice.endpoint

    def first_token(self) -> None:
        """Note that the prefill is done."""
        if self._is_open and not self._charge.is_decoding:
            books.first_token(self._charge, self._clock())

    @property
    def prefilled_in_s(self) -> float:
        """Seconds until all prefills there are done, this one included, as predicted now."""
        endpoint = self.endpoint
        books = endpoint.outstanding
        return books.prefill_s + 1.5 * endpoint.work.step_s(books.decoding, books.context_tokens)

    def presume_first_token(self) -> None:
        """Take the prefill for done: an answer that is not streamed does not show its first token."""
        if self._is_open and not self._charge.is_decoding:
            books.first_token(self._charge, self._clock(), is_seen=False)

    def used(self, usage: Usage, *, is_timely: bool = True) -> None:
        """Note what the engine says of an answer that ended well: what it made, and what it had cached.

        Args:
            is_timely: False where its client took its time: that says nothing of the engine's.
        """
        self._output_tokens = usage.output_tokens if is_timely else None
        request = self._charge.request
        if usage.prompt_tokens:
            self.member.forecast.note(
                usage.prompt_tokens,
                self._charge.cached_tokens,
                usage.cached_tokens,
                request.unit_tokens,
                self._clock(),
            )

    def refused(self) -> None:
        """Note that the engine did not take the request: it computes nothing of it, and holds no more than before."""
        self._is_refused = True

    def served(self) -> None:
        """Note that the engine answered: it lives, whatever it said."""
        self.endpoint.health.served()

    def failed(self) -> None:
        """Note that the engine could not be reached or broke off."""
        self.endpoint.health.failed()

    def not_now(self, retry_after_s: float) -> None:
        """Note that the engine asked to be left alone."""
        self.endpoint.health.not_now(self._clock(), retry_after_s)

    def drain(self) -> None:
        """Note that the engine is shutting down."""
        self.endpoint.health.drain()

    def give_back(self) -> None:
        """End it unused."""
        self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._is_open
        self._is_open = False
        now, index, prefix = self._clock(), self.member.pool.index, self._charge.request.prefix
        books.finish(self._charge, now, self._output_tokens)
        new = prefix[self._held_before :]
        if self._charge.is_decoding:
            index.done(self.endpoint, prefix, now)
        elif self._is_refused and new:
            index.unlearn(self.endpoint, new, self.endpoint.outstanding.pinned)
