"""Installed: client libraries in places of their own under .bench/clients/, never in our environment."""

import shutil
import sys
from pathlib import Path

import pytest

from tests.brought import BENCH, environment, run

PLACES = BENCH / "clients"
OPENAI_PYTHON_1 = "1.99.9"
OPENAI_NODE = "7.59.0"


def openai_python_1() -> Path:
    """Install openai-python 1.x, once; return the Python that has it."""
    return environment(PLACES / f"openai-python-{OPENAI_PYTHON_1}", f"openai=={OPENAI_PYTHON_1}")


def openai_node() -> Path:
    """Install openai-node, once; return the folder that has it in its node_modules."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    place = PLACES / f"openai-node-{OPENAI_NODE}"
    if not (place / "installed").exists():
        place.mkdir(parents=True, exist_ok=True)
        run("npm", "install", "--prefix", place, "--no-audit", "--no-fund", f"openai@{OPENAI_NODE}")
        (place / "installed").touch()
    return place


def this_python() -> Path:
    """Tell the Python that runs the tests: it has the current client."""
    return Path(sys.executable)
