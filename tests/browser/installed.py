"""Installed: a Chromium under .bench/browser/, brought by npm's package @sparticuz/chromium; or one that is here.

KVLANE_BROWSER names another one. The package has the browser, its libraries and a font as Brotli archives; node, which
comes with npm, takes them out.
"""

import os
import shutil
import tarfile
from dataclasses import dataclass, field

import pytest

from tests.brought import BENCH, run

VERSION = "147.0.0"
PLACE = BENCH / "browser" / f"chromium-{VERSION}"
ON_PATH = ("chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")
UNPACK = """
import { readFileSync, writeFileSync, readdirSync } from "node:fs";
import zlib from "node:zlib";
const [from, to] = process.argv.slice(1);
for (const name of readdirSync(from).filter((name) => name.endsWith(".br")))
  writeFileSync(`${to}/${name.slice(0, -3)}`, zlib.brotliDecompressSync(readFileSync(`${from}/${name}`)));
"""


@dataclass(frozen=True, slots=True)
class Browser:
    """A browser that can be started."""

    executable: str
    environment: dict[str, str] = field(default_factory=dict)


def browser() -> Browser:
    """Find a browser, or bring one, once."""
    for name in filter(None, (os.environ.get("KVLANE_BROWSER"), *ON_PATH)):
        if (found := shutil.which(name)) is not None:
            return Browser(found)
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("there is no browser, and no npm to bring one")
    if not (PLACE / "installed").exists():
        _bring()
    fonts = PLACE / "fonts" / "fonts.conf"
    libraries = os.pathsep.join((str(PLACE / "lib"), str(PLACE)))
    return Browser(str(PLACE / "chromium"), {"LD_LIBRARY_PATH": libraries, "FONTCONFIG_FILE": str(fonts)})


def _bring() -> None:
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir(parents=True)
    package = f"@sparticuz/chromium@{VERSION}"
    run("npm", "install", "--prefix", PLACE, "--no-audit", "--no-fund", "--ignore-scripts", package)
    archives = PLACE / "node_modules" / "@sparticuz" / "chromium" / "bin"
    run("node", "--input-type=module", "--eval", UNPACK, archives, PLACE)
    for archive in PLACE.glob("*.tar"):
        with tarfile.open(archive) as packed:
            packed.extractall(PLACE / "fonts" if archive.stem == "fonts" else PLACE, filter="data")
    (PLACE / "fonts" / "fonts.conf").write_text(
        f"<fontconfig><dir>{PLACE / 'fonts'}</dir><dir>/usr/share/fonts</dir><cachedir>{PLACE}</cachedir></fontconfig>"
    )
    (PLACE / "chromium").chmod(0o755)
    (PLACE / "installed").touch()
