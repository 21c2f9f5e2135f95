"""Captured pages, as the probe would hand them to an adapter."""

from pathlib import Path

from gateway.engines.adapter import Page

CAPTURES = Path(__file__).parent / "captures"


def capture(name: str) -> bytes:
    """Read a capture that is a body."""
    return (CAPTURES / name).read_bytes()


def answer(name: str, path: str = "/") -> Page:
    """Read a capture of `curl -i`: requests, status line, headers, an empty line, the body."""
    lines = capture(name).split(b"\n")
    while lines[0].startswith(b"###"):
        lines.pop(0)
    head, _, body = b"\n".join(lines).replace(b"\r\n", b"\n").partition(b"\n\n")
    status, *headers = head.decode().split("\n")
    pairs = (header.split(": ", 1) for header in headers)
    return Page(path, int(status.split()[1]), body.rstrip(b"\n"), {name.lower(): value for name, value in pairs})


def page(path: str, body: bytes | str, status: int = 200, server: str | None = "uvicorn") -> Page:
    """Make a page by hand."""
    return Page(
        path,
        status,
        body.encode() if isinstance(body, str) else body,
        {} if server is None else {"server": server},
    )


def pages(*answers: Page) -> dict[str, Page]:
    """Key pages by the path that was asked."""
    return {each.path: each for each in answers}
