"""What commands ask the admin listener of a gateway that runs."""

from collections.abc import Mapping

import aiohttp
import orjson
from yarl import URL

from gateway.logs import reason


class Unanswered(Exception):
    """There is no answer; the message is the one line that says why."""


async def asked(
    admin: str,
    key: str | None,
    path: str,
    parameters: Mapping[str, str] | None = None,
    *,
    timeout_s: float,
    accept: str = "*/*",
) -> tuple[int, bytes]:
    """Give the status and the body of a page.

    Args:
        admin: Where the listener is.
        key: Of an admin, if it needs one.
        path: Without a slash before it.
        accept: The formats that would do.

    Raises:
        Unanswered: there is none.
    """
    url = url_of(admin)
    headers = {"accept": accept, **({} if key is None else {"authorization": f"Bearer {key}"})}
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_s)) as session,
            session.get(url / path, params=parameters, headers=headers) as response,
        ):
            return response.status, await response.read()
    except TimeoutError:
        raise Unanswered(f"{admin}: no answer within {timeout_s:g} s") from None
    except (aiohttp.ClientError, ValueError) as error:  # ValueError: a key that is no header
        if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, aiohttp.ClientSSLError):
            raise Unanswered(f"{admin}: no gateway is there: {reason(error.os_error)}") from error
        raise Unanswered(f"{admin}: {error}") from error


def url_of(admin: str) -> URL:
    """Read where an admin listener is.

    Raises:
        Unanswered: it is nowhere.
    """
    try:
        url = URL(admin)
        if url.scheme not in ("http", "https") or not url.host:
            raise ValueError
    except ValueError:
        raise Unanswered(f"an admin listener is at http://host:port, not {admin!r}") from None
    return url


def refusal(status: int, body: bytes) -> str:
    """Say in one line what an answer says that is not the page."""
    try:
        message = " ".join(orjson.loads(body)["error"]["message"].split())
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return f"answers {status}, which is no admin listener of Kvlane's"
    return f"{message}; say it with --admin-key or KVLANE_ADMIN_KEY" if status == 401 else message
