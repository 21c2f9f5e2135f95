"""The dashboard in a real browser: alive before a fleet, in every state, at two widths, and deaf to hostile names.

Pictures are left in .bench/screens/, to be looked at. Needs a browser: see installed.py.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway.dashboard import dashboard
from tests.browser.installed import browser
from tests.browser.page import Page, page_of
from tests.fleet_fixtures import CHAT, House, house

pytestmark = pytest.mark.browser

SCREENS = Path(__file__).parent.parent.parent / ".bench" / "screens"
SIZES = {"desktop": (1400, 900), "phone": (390, 844)}
HOSTILE = '"><img src=x onerror="window.stolen=1"><script>window.stolen=1</script>\u202egnitpurroc'
FINDING = {
    "tenant": "team-a",
    "model": "sim",
    "fault": "time",
    "place": "system prompt",
    "line": 2,
    "position_tokens": 24,
    "requests": 1000,
    "wasted_tokens": 1_250_000,
    "wasted_tokens_per_day": 2_500_000,
    "share": 0.62,
    "what": "a time of day in line 2 of the system prompt",
    "advice": "Put the time at the end of the last user turn, or give it to the model by a tool.",
    "masked_text": "Now: <time>",
    "example": "····· <time>",
}
SYSTEM = "You answer for the harbour office, briefly, and in the order of the timetable. " * 40
LIVE = "document.body.dataset.state === 'live' && document.querySelectorAll('canvas').length === 4"


class Stub:
    """An admin listener that says what it is told to say."""

    def __init__(self, feed: dict[str, Any]) -> None:
        self.feed: dict[str, Any] | None = feed
        self.status = 200
        self.doctor: list[dict[str, Any]] | None = None
        app = web.Application()
        app.router.add_routes(
            [*dashboard(), web.get("/admin/overview", self._overview), web.get("/admin/doctor", self._doctor)]
        )
        self.server = TestServer(app)

    async def _overview(self, request: web.Request) -> web.StreamResponse:
        if self.feed is None:
            await asyncio.sleep(3600)
        return web.json_response(self.feed, status=self.status)

    async def _doctor(self, request: web.Request) -> web.StreamResponse:
        found = self.doctor or []
        return web.json_response({"is_enabled": self.doctor is not None, "looked_at": 1000, "findings": found})


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Page]:
    async with page_of(browser(), tmp_path) as found:
        yield found


@pytest.fixture
async def feed() -> dict[str, Any]:
    """A feed as a gateway that was asked a few times gives it."""
    async with house(2) as whole:
        await traffic(whole)
        found: dict[str, Any] = orjson.loads(orjson.dumps(await whole.gateway.overview.content()))
        at = found["points"]["at"]
        spread = [at[-1] - 5 * (len(at) - 1 - place) for place in range(len(at))]  # they were taken in no time
        return {**found, "points": {**found["points"], "at": spread}, "every_s": 1}


@pytest.fixture
async def stub(feed: dict[str, Any]) -> AsyncIterator[Stub]:
    made = Stub(feed)
    async with made.server:
        yield made


async def traffic(whole: House) -> None:
    """Ask until there is something in every part of the page."""
    for at in range(30):
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"question {at}"}]
        await whole.post(CHAT, {"model": "sim", "max_tokens": 8, "stream": True, "messages": messages})
        if at % 3 == 2:
            whole.gateway.overview.history.read()
    await whole.rests()


async def keep(page: Page, name: str) -> None:
    """Leave a picture."""
    picture = await page.picture()
    assert picture.startswith(b"\x89PNG")
    await asyncio.to_thread(SCREENS.mkdir, parents=True, exist_ok=True)
    await asyncio.to_thread((SCREENS / f"{name}.png").write_bytes, picture)


async def text(page: Page, selector: str) -> str:
    """Give what a part of the page says."""
    return str(await page.evaluate(f"document.querySelector({selector!r}).innerText"))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
async def test_a_fleet_is_seen_alive_at_every_width(page: Page, size: str, is_dark: bool) -> None:
    width, height = SIZES[size]
    async with house(3) as whole:
        await traffic(whole)
        await page.go(f"{whole.gateway.admin_url}/ui", width, height, is_dark=is_dark)
        await page.until(LIVE)
        assert "e0" in await text(page, "#endpoints tbody")
        assert "anonymous" in await text(page, "#tenants tbody")
        assert "sim" in await page.evaluate("document.querySelector('#prefixes tbody').textContent")
        assert await page.evaluate("document.documentElement.scrollWidth") <= width, "nothing to scroll sideways"
        assert {url.removeprefix(whole.gateway.admin_url).partition("/")[0] for url in page.requested} == {""}
        assert page.complaints == []
        await keep(page, f"{size}-{'dark' if is_dark else 'light'}")


async def test_before_the_first_answer_it_says_that_it_reads(page: Page, stub: Stub) -> None:
    stub.feed = None
    await page.go(str(stub.server.make_url("/ui")), *SIZES["desktop"])
    assert await text(page, "#status") == "reading the gateway…"
    assert await page.evaluate("document.body.dataset.state") == "loading"
    assert not re.search(r"\d", (await text(page, "#tiles")).replace("p95", "")), "a figure that nobody has told"
    await keep(page, "loading")


@pytest.mark.parametrize("size", SIZES)
async def test_a_gateway_that_nobody_asks_says_so(page: Page, size: str) -> None:
    async with house(1) as whole:
        await page.go(f"{whole.gateway.admin_url}/ui", *SIZES[size])
        await page.until(LIVE)
        assert "Nobody has asked for anything yet." in await text(page, "#tenants")
        assert "No streamed request" in await text(page, "#chart-ttft")
        await keep(page, f"empty-{size}")


async def test_a_gateway_that_goes_leaves_what_it_last_said_and_comes_back(page: Page, stub: Stub) -> None:
    await page.go(str(stub.server.make_url("/ui")), *SIZES["desktop"])
    await page.until(LIVE)
    stub.status = 503
    await page.until("document.body.dataset.state === 'gone'")
    assert "The gateway does not answer. Below is what it last said, at " in await text(page, "#trouble")
    assert "e0" in await text(page, "#endpoints tbody")
    await keep(page, "gone")
    stub.status = 200
    await page.until(LIVE)
    assert await page.evaluate("document.querySelector('#trouble').hidden")


async def test_a_key_that_is_not_good_any_more_is_told(page: Page, stub: Stub) -> None:
    stub.status = 401
    await page.go(str(stub.server.make_url("/ui")), *SIZES["desktop"])
    await page.until("document.body.dataset.state === 'gone'")
    assert await text(page, "#trouble") == "This page needs an admin key: load it again."


async def test_names_from_elsewhere_are_text(page: Page, stub: Stub) -> None:
    feed = stub.feed
    assert feed is not None
    for each in (feed["endpoints"][0], feed["tenants"][0], feed["pools"][0]):
        each["name"] = HOSTILE
    feed["endpoints"][0].update(trouble=HOSTILE, models=[HOSTILE], kind=HOSTILE, state=HOSTILE)
    feed["tenants"][0]["limits"] = [{"name": HOSTILE, "limit": 10, "remaining": 0, "reset_s": 1.0}]
    feed["prefixes"][0].update(model=HOSTILE, homes=[HOSTILE], mark=HOSTILE)
    feed["refusals"]["codes"] = [{"code": HOSTILE, "count": 1}]
    feed["version"] = HOSTILE
    stub.doctor = [{**FINDING, **dict.fromkeys(("what", "advice", "masked_text", "tenant", "model"), HOSTILE)}]
    await page.go(str(stub.server.make_url("/ui")), *SIZES["phone"])
    await page.until(LIVE)
    await page.until("!document.querySelector('#doctor').hidden")
    assert await page.evaluate("document.querySelectorAll('main img, main script').length") == 0
    assert await page.evaluate("window.stolen") is None
    for part in ("endpoints", "tenants", "prefixes", "refusals", "doctor"):
        assert "onerror" in await page.evaluate(f"document.querySelector('#{part} tbody').textContent")
    assert await page.evaluate("document.documentElement.scrollWidth") <= SIZES["phone"][0]
    await keep(page, "hostile-phone")


async def test_no_script_of_anybody_else_runs(page: Page, stub: Stub) -> None:
    await page.go(str(stub.server.make_url("/ui")), *SIZES["desktop"])
    await page.until(LIVE)
    inline = "(s => { s.text = 'window.stolen = 1'; document.body.append(s) })(document.createElement('script'))"
    with pytest.raises(AssertionError, match="TrustedScript"):
        await page.evaluate(inline)
    with pytest.raises(AssertionError, match="TrustedHTML"):
        await page.evaluate("document.body.innerHTML = '<b>'")
    assert await page.evaluate("fetch('http://127.0.0.2:1/').then(() => 'sent', () => 'kept')") == "kept"
    assert any("Content Security Policy" in each for each in page.complaints)


async def test_what_the_doctor_found_is_shown(page: Page, stub: Stub) -> None:
    stub.doctor = [FINDING]
    await page.go(str(stub.server.make_url("/ui")), *SIZES["desktop"])
    await page.until("!document.querySelector('#doctor').hidden")
    row = await text(page, "#doctor tbody")
    assert "a time of day in line 2 of the system prompt" in row
    assert "Now: <time>" in row
    assert "1.25M" in row
    assert "2.50M a day" in row
    await keep(page, "doctor")


async def test_a_doctor_that_found_nothing_says_so(page: Page, stub: Stub) -> None:
    stub.doctor = []
    await page.go(str(stub.server.make_url("/ui")), *SIZES["desktop"])
    await page.until("!document.querySelector('#doctor').hidden")
    assert "Nothing, in 1,000 prompts." in await text(page, "#doctor")


async def test_a_large_fleet_is_listed_to_its_end(page: Page, stub: Stub) -> None:
    feed = stub.feed
    assert feed is not None
    first = feed["endpoints"][0]
    feed["endpoints"] = [{**first, "name": f"a-rather-long-name-of-an-endpoint-{at}"} for at in range(128)]
    feed["endpoints_total"] = 300
    feed["tenants"] = [{**feed["tenants"][0], "name": f"tenant-{at}"} for at in range(50)]
    await page.go(str(stub.server.make_url("/ui")), *SIZES["phone"])
    await page.until(LIVE)
    assert await page.evaluate("document.querySelectorAll('#endpoints tbody tr').length") == 128
    assert "the first 128 of 300" in await text(page, "#pools")
    assert await page.evaluate("document.documentElement.scrollWidth") <= SIZES["phone"][0]
