"""Page: one tab of a headless Chromium, driven over its DevTools protocol, on a pipe of its own and nowhere else."""

import asyncio
import base64
import itertools
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.browser.installed import Browser

FLAGS = (
    "--headless",
    "--no-sandbox",  # tests run as root in CI
    "--disable-gpu",
    "--lang=en-US",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--force-color-profile=srgb",
    "--remote-debugging-pipe",
)
ANSWER_S = 60.0
LOOK_EVERY_S = 0.1


class Page:
    """A tab."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._session: str | None = None
        self.complaints: list[str] = []
        """What the browser had to say: errors, exceptions, breaches of the Content-Security-Policy."""
        self.requested: list[str] = []
        """URLs."""

    async def tell(self, method: str, **params: Any) -> dict[str, Any]:
        """Give a command, and its answer."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        waiter = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._writer.write(json.dumps(message).encode() + b"\0")
        async with asyncio.timeout(ANSWER_S):
            answer = await waiter
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    async def open(self) -> None:
        """Make the tab, and listen to it."""
        target = await self.tell("Target.createTarget", url="about:blank")
        attached = await self.tell("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.tell(f"{domain}.enable")

    async def go(self, url: str, width: int, height: int, *, is_dark: bool = False) -> None:
        """Show a page on a screen of this size."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        await self.tell("Emulation.setEmulatedMedia", features=[scheme])
        await self.tell(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        await self.tell("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'")

    async def evaluate(self, expression: str) -> Any:
        """Give what an expression comes to, there."""
        answer = await self.tell("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def until(self, expression: str) -> None:
        """Wait until an expression is true there."""
        try:
            async with asyncio.timeout(ANSWER_S):
                while not await self.evaluate(expression):  # noqa: ASYNC110  # the browser has no event for it
                    await asyncio.sleep(LOOK_EVERY_S)
        except TimeoutError:
            raise AssertionError(f"never true: {expression}; the browser said {self.complaints}") from None

    async def picture(self) -> bytes:
        """Give a picture of the whole page, as PNG."""
        shot = await self.tell("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(shot["data"])

    async def listen(self) -> None:
        """Take what comes from the browser, until it ends."""
        while True:
            try:
                message = json.loads((await self._reader.readuntil(b"\0"))[:-1])
            except asyncio.IncompleteReadError:
                return
            if "id" in message:
                self._waiting.pop(message["id"]).set_result(message)
            else:
                self._hear(message["method"], message["params"])

    def _hear(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.complaints.append(str(params["args"]))
        elif method == "Network.requestWillBeSent":
            self.requested.append(params["request"]["url"])


@asynccontextmanager
async def page_of(browser: Browser, profile: Path) -> AsyncIterator[Page]:
    """Start a browser with a fresh profile, and give its one tab."""
    to_read, to_write = os.pipe(), os.pipe()
    # The browser reads commands from 3 and writes to 4.
    command = f'exec "$0" "$@" 3<&{to_read[0]} 4>&{to_write[1]}'
    process = await asyncio.create_subprocess_exec(
        "/bin/bash",
        "-c",
        command,
        browser.executable,
        *FLAGS,
        f"--user-data-dir={profile}",
        env={**os.environ, "LANG": "en_US.UTF-8", "LC_ALL": "en_US.UTF-8", **browser.environment},
        pass_fds=(to_read[0], to_write[1]),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    os.close(to_read[0])
    os.close(to_write[1])
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=64 << 20)
    source, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(to_write[0], "rb"))
    sink, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, os.fdopen(to_read[1], "wb"))
    page = Page(reader, asyncio.StreamWriter(sink, protocol, reader, loop))
    listening = asyncio.create_task(page.listen())
    try:
        await page.open()
        yield page
    finally:
        process.kill()
        await process.wait()
        listening.cancel()
        source.close()
        sink.close()
