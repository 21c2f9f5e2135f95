"""The admin pages: for whoever has an admin key; without any, for this machine alone, and for no other site's page."""

import asyncio
import base64
import hashlib
import ipaddress
import socket
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request

from gateway.app import Gateway
from gateway.guard import Guard, is_any_address, is_loopback
from gateway.sections import Listen
from loadtests.server import SimulatedEngine
from tests.wire.client import Answer, get
from tests.wire.house import serving, tenant

PAGE = "/admin/endpoints"
GUARDED = [PAGE, "/admin", "/ui", "/ui/", "/", "/admin/../admin/endpoints", "/%61dmin/endpoints", "//metrics"]
KEY = "the admin's key"


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def basic(password: str, user: str = "anybody") -> tuple[str, str]:
    return "Authorization", "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def bearer(key: str) -> tuple[str, str]:
    return "Authorization", f"Bearer {key}"


def refusal(answer: Answer) -> tuple[int, str | None]:
    error = answer.error
    assert set(error) == {"message", "type", "param", "code"}
    return answer.status, error["code"]


FORBIDDEN = (403, "admin_not_allowed")
UNKNOWN = (401, "invalid_api_key")


# Without an admin key.


async def test_this_machine_may_see_everything(gateway: Gateway) -> None:
    assert (await get(gateway.admin_url, PAGE)).status == 200


HOSTS = ["127.0.0.1", "localhost", "LOCALHOST:8081", "127.0.0.1:1", "[::1]:8081", "127.9.9.9"]


@pytest.mark.parametrize("host", HOSTS)
async def test_by_any_of_its_names(gateway: Gateway, host: str) -> None:
    assert (await get(gateway.admin_url, PAGE, [("Host", host)])).status == 200


HOSTILE = [
    "evil.example",
    "evil.example:8081",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "evil.example@127.0.0.1:x",
    "0.0.0.0:8081",
    "169.254.169.254",
    "[::ffff:8.8.8.8]",
    "",
    "[",
]


@pytest.mark.parametrize("host", HOSTILE)
@pytest.mark.parametrize("path", [PAGE, "/admin", "/ui"])
async def test_a_name_that_somebody_else_lets_point_here_is_refused(gateway: Gateway, host: str, path: str) -> None:
    """DNS rebinding: to the browser this is the other site, and its pages may read the answer."""
    assert refusal(await get(gateway.admin_url, path, [("Host", host)])) == FORBIDDEN


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:1", "file://", "http://localhost:1"]
)
async def test_a_page_of_another_site_is_refused(gateway: Gateway, origin: str) -> None:
    assert refusal(await get(gateway.admin_url, PAGE, [("Origin", origin)])) == FORBIDDEN


async def test_our_own_pages_may_ask(gateway: Gateway) -> None:
    own = gateway.admin_url
    assert (await get(own, PAGE, [("Host", own.removeprefix("http://")), ("Origin", own)])).status == 200


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "Via", "X-Real-IP"])
async def test_a_proxy_on_this_machine_speaks_for_others(gateway: Gateway, header: str) -> None:
    assert refusal(await get(gateway.admin_url, PAGE, [(header, "203.0.113.9")])) == FORBIDDEN


@pytest.mark.parametrize("remote", ["203.0.113.9", "172.17.0.1", "::ffff:10.0.0.1", "2001:db8::1", "", "localhost"])
def test_only_a_peer_at_this_machine_is_let_in(remote: str) -> None:
    request = make_mocked_request("GET", PAGE, headers={"Host": "127.0.0.1:8081"})
    guard = Guard(Listen())
    assert guard.refusal(request.clone(remote="127.0.0.1")) is None
    refused = guard.refusal(request.clone(remote=remote))
    assert refused is not None
    assert (refused.status, "listen.admin_key_sha256" in refused.message) == (403, True)
    assert guard.refusal(request.clone(remote=remote, rel_url="/metrics")) is None


@pytest.mark.parametrize(
    ("admin_host", "is_let_in"), [("kvlane.internal", True), ("10.0.0.5", False), ("0.0.0.0", False), ("", False)]
)
def test_the_name_of_the_listener_is_one_of_this_machine(admin_host: str, is_let_in: bool) -> None:
    request = make_mocked_request("GET", PAGE, headers={"Host": "Kvlane.internal:8081"}).clone(remote="::1")
    assert (Guard(Listen(admin_host=admin_host)).refusal(request) is None) == is_let_in


def own_address() -> str | None:
    """Give an address of this machine that others reach it by; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect(("192.0.2.1", 9))
        except OSError:
            return None
        address = str(asked.getsockname()[0])
    return None if ipaddress.ip_address(address).is_loopback else address


async def test_another_machine_is_told_what_to_configure(engine: SimulatedEngine) -> None:
    address = own_address()
    if address is None:
        pytest.skip("this machine has no address but its own")
    async with serving(engine.url, listen={"admin_host": address}) as gateway:
        answer = await get(gateway.admin_url, PAGE)
        assert refusal(answer) == FORBIDDEN
        assert "listen.admin_key_sha256" in str(answer.error["message"])
        assert (await get(gateway.admin_url, "/metrics")).status == 200
        assert (await get(gateway.admin_url, "/healthz")).status == 200


async def test_metrics_and_health_are_open_to_any_host_and_proxy(gateway: Gateway) -> None:
    for path in ("/metrics", "/healthz"):
        answer = await get(gateway.admin_url, path, [("Host", "kvlane.monitoring:8081"), ("Via", "1.1 x")])
        assert answer.status == 200


# With one.


@pytest.fixture
def listen() -> dict[str, Any]:
    return {"admin_key_sha256": [digest("another"), digest(KEY).upper()]}


async def test_an_admin_key_opens(engine: SimulatedEngine, listen: dict[str, Any]) -> None:
    async with serving(engine.url, listen=listen) as gateway:
        for header in (bearer(KEY), bearer("another"), basic(KEY), basic(KEY, ""), basic(KEY, "é")):
            assert (await get(gateway.admin_url, PAGE, [header])).status == 200
        there = [bearer(KEY), ("Host", "kvlane.internal:8081"), ("X-Forwarded-For", "203.0.113.9")]
        assert (await get(gateway.admin_url, PAGE, there)).status == 200


async def test_nothing_else_does(engine: SimulatedEngine, listen: dict[str, Any]) -> None:
    """Not even from this machine; a tenant's key least of all."""
    wrong = [
        [],
        [bearer("")],
        [bearer("a's key")],
        [bearer(KEY + "x")],
        [bearer(digest(KEY))],
        [bearer("k" * 8_000)],
        [bearer("é")],
        [bearer(KEY), bearer(KEY)],
        [basic("")],
        [basic("a's key")],
        [basic("x", user=KEY)],
        [("Authorization", "Basic ?")],
        [("Authorization", "Basic " + base64.b64encode(KEY.encode()).decode())],
        [("Authorization", "Basic /w==")],
        [("Authorization", KEY)],
        [("Authorization", "")],
        [("X-API-Key", KEY)],
    ]
    async with serving(engine.url, listen=listen, tenants=[tenant("a")]) as gateway:
        for headers in wrong:
            for path in (PAGE, "/ui", "/nothing"):
                answer = await get(gateway.admin_url, path, headers)
                assert refusal(answer) == UNKNOWN, headers
                assert answer.head["www-authenticate"].startswith("Basic ")
                assert KEY not in answer.body.decode()
        assert (await get(gateway.admin_url, "/metrics")).status == 200


async def test_a_key_beyond_all_bounds_is_refused_and_not_logged(
    engine: SimulatedEngine, listen: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(engine.url, listen=listen) as gateway:
        assert (await get(gateway.admin_url, PAGE, [bearer("key" * 10_000)])).status == 400
    assert "keykey" not in caplog.text


async def test_a_page_of_another_site_is_refused_even_with_the_key(
    engine: SimulatedEngine, listen: dict[str, Any]
) -> None:
    """Browsers send a password that they know with whatever request, whoever's page asks."""
    async with serving(engine.url, listen=listen) as gateway:
        answer = await get(gateway.admin_url, PAGE, [basic(KEY), ("Origin", "http://evil.example")])
        assert refusal(answer) == FORBIDDEN


async def test_metrics_may_need_the_key_and_health_never_does(engine: SimulatedEngine, listen: dict[str, Any]) -> None:
    async with serving(engine.url, listen={**listen, "metrics_need_key": True}) as gateway:
        for path in ("/metrics", "/metrics?x=1", "/%6detrics"):
            assert refusal(await get(gateway.admin_url, path)) == UNKNOWN
        assert (await get(gateway.admin_url, "/metrics", [bearer(KEY)])).status == 200
        assert (await get(gateway.admin_url, "/healthz")).status == 200


async def test_an_admin_key_is_no_tenants(engine: SimulatedEngine, listen: dict[str, Any]) -> None:
    async with serving(engine.url, listen=listen, tenants=[tenant("a")]) as gateway:
        assert (await get(gateway.url, "/v1/models", [bearer(KEY)])).status == 401


async def test_there_is_one_answer_for_every_way_to_write_a_path(
    engine: SimulatedEngine, listen: dict[str, Any]
) -> None:
    async with serving(engine.url, listen=listen) as gateway:
        found = await asyncio.gather(*(get(gateway.admin_url, path) for path in GUARDED))
        assert {answer.status for answer in found} == {401}


# Addresses.


@pytest.mark.parametrize("address", ["127.0.0.1", "127.255.255.254", "::1", "::ffff:127.0.0.1"])
def test_addresses_of_this_machine(address: str) -> None:
    assert is_loopback(address)


@pytest.mark.parametrize("address", ["", "10.0.0.1", "0.0.0.0", "::", "::ffff:10.0.0.1", "localhost", "127.1", "1"])
def test_addresses_that_are_not(address: str) -> None:
    assert not is_loopback(address)


def test_what_stands_for_every_address() -> None:
    assert all(map(is_any_address, ("", "0.0.0.0", "::")))
    assert not any(map(is_any_address, ("127.0.0.1", "::1", "box")))
