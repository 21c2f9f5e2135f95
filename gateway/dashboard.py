"""GET /ui: the dashboard, a page that reads /admin/overview. Its files are `gateway/ui/`; nothing comes from elsewhere.

The page is static: no name, figure or word of a client is ever written into it, all of that comes as JSON and is put
there as text. What a browser may do with it is said in the strictest terms there are: nothing from other places, no
inline script or style, no frame around it, and no text that becomes markup (trusted types without a policy).
"""

import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web

FILES = Path(__file__).parent / "ui"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
PAGE = "page.html"
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",  # asked for again each time, and answered with 304 while it is the same
}


def dashboard() -> list[web.RouteDef]:
    """Give the page and its files with their paths."""
    routes = [web.get("/ui", _serving(FILES / PAGE))]
    routes += [web.get(f"/ui/{file.name}", _serving(file)) for file in sorted(FILES.iterdir()) if file.suffix in TYPES]
    return routes


def _serving(file: Path) -> Callable[[web.Request], Awaitable[web.Response]]:
    body = file.read_bytes()
    tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
    headers = {**HEADERS, "etag": tag}

    async def serve(request: web.Request) -> web.Response:
        if request.headers.get("if-none-match") == tag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=body, headers=headers, content_type=TYPES[file.suffix], charset="utf-8")

    return serve
