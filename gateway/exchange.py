"""One request, read from its client and ready to be sent to whichever engine."""

import asyncio
from dataclasses import dataclass
from io import BytesIO

from aiohttp import StreamReader
from aiohttp.web_exceptions import HTTPException
from aiohttp.web_protocol import RequestPayloadError
from aiohttp.web_request import BaseRequest

from gateway.engines.catalog import ADAPTERS
from gateway.errors import BodyTimeout, BrokenBody, MethodNotAllowed, RequestTooLarge
from gateway.headers import client_deadline_s, lines_to_engine
from gateway.hops import Hops
from gateway.members import Member
from gateway.openai import Call
from gateway.routes import Route
from gateway.splice import Buffer
from gateway.tenants import Tenant
from gateway.trace import Trace
from policies.request import InferenceRequest


@dataclass(slots=True)
class Exchange:
    """One request, ready to be sent to whichever engine."""

    route: Route
    method: str
    target: str
    """Path and query, as the client wrote them."""
    header_lines: bytes
    body: bytes
    call: Call
    tenant: Tenant
    inference: InferenceRequest
    """Of sizes unknown, until the prompt has been read."""
    sets_deadline: bool = False
    """Whether its deadline is its client's own."""
    hops: Hops | None = None
    """Of its trace, where it is traced."""

    @classmethod
    def of(
        cls, request: BaseRequest, route: Route, body: bytes, call: Call, tenant: Tenant, trace: Trace, most_s: float
    ) -> "Exchange":
        """Make it of what a client sent; its own deadline holds if it is sooner than `most_s` from its arrival."""
        headers = request.headers
        own_s = client_deadline_s(headers)
        sets_deadline = own_s is not None and own_s < most_s
        deadline = trace.arrived_at + (own_s if own_s is not None and sets_deadline else most_s)
        inference = InferenceRequest(id=trace.id, model=call.model, tenant=tenant.name, deadline=deadline)
        is_traced = trace.hops is not None
        lines = lines_to_engine(request.raw_headers, headers.getall("connection", ()), is_traced=is_traced)
        asked = route, request.method, request.raw_path, lines, body, call
        return cls(*asked, tenant, inference, sets_deadline, trace.hops)

    def pieces_for(self, member: Member) -> list[Buffer]:
        """Give the bytes of the request as one engine gets it."""
        takes_unknown = member.kind is None or ADAPTERS[member.kind].takes_unknown_fields
        body = self.call.body_for_engine(self.body, takes_unknown_fields=takes_unknown)
        length = 0
        for piece in body:
            length += len(piece)
        first = f"{self.method} {member.path_prefix}{self.target} HTTP/1.1\r\n{member.header_lines}".encode()
        head = b"%bx-request-id: %b\r\ncontent-length: %d\r\n%b%b\r\n" % (
            first,
            self.inference.id.encode(),
            length,
            self.header_lines,
            b"" if self.hops is None else self.hops.lines_to_engine,
        )
        return [head, *body]


def check_method(method: str, allowed: tuple[str, ...]) -> None:
    """Make sure that a path is called as it is meant to be.

    Raises:
        MethodNotAllowed: it is not.
    """
    if method not in allowed:
        raise MethodNotAllowed(method, allowed)


def check_length(request: BaseRequest, most: int) -> None:
    """Make sure, before any of it is read, that a body does not say it is too long.

    Raises:
        RequestTooLarge: it does.
    """
    said = request.headers.get("content-length")
    if said is not None and said.isdecimal() and int(said) > most:
        raise RequestTooLarge(f"the body has {said} bytes, the limit is {most}")


LEAST_BYTES_PER_S = 4096  # slower than any modem: a body that drips holds a place and memory


async def read_body(request: BaseRequest, most: int, timeout_s: float) -> bytes:
    """Read the body of a request.

    Raises:
        RequestTooLarge, BodyTimeout, BrokenBody: it is too long, does not come, or is not framed as it says.
    """
    content: StreamReader = request.content
    try:
        if content.is_eof():  # small bodies arrive with their head
            body = content.read_nowait()
        else:
            loop = asyncio.get_running_loop()
            began = loop.time()
            whole = BytesIO()  # grows in one place and gives it away: pieces would leave holes where they lay
            while not content.at_eof() and whole.tell() <= most:
                whole.write(await asyncio.wait_for(content.readany(), timeout_s))
                if loop.time() - began > timeout_s + whole.tell() / LEAST_BYTES_PER_S:
                    raise TimeoutError
            body = whole.getvalue()
    except TimeoutError as error:
        raise BodyTimeout(f"the body did not arrive: too little came within {timeout_s:g} s") from error
    except (RequestPayloadError, HTTPException, ValueError) as error:
        raise BrokenBody("the body is not framed or encoded as its headers say") from error
    if len(body) > most:
        raise RequestTooLarge(f"the body has more than {most} bytes, which is the limit")
    return body
