"""Installed: client libraries in places of their own under .bench/clients/, never in our environment."""

import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

PLACES = Path(__file__).parent.parent.parent / ".bench" / "clients"
OPENAI_PYTHON_1 = "1.99.9"
OPENAI_NODE = "7.59.0"
INSTALL_LIMIT_S = 600.0


def openai_python_1() -> Path:
    """Install openai-python 1.x, once; return the Python that has it."""
    place = PLACES / f"openai-python-{OPENAI_PYTHON_1}"
    python = place / "bin" / "python"
    if not (place / "installed").exists():
        venv.create(place, with_pip=True, clear=True)
        _install(str(python), "-m", "pip", "install", "--quiet", f"openai=={OPENAI_PYTHON_1}")
        (place / "installed").touch()
    return python


def openai_node() -> Path:
    """Install openai-node, once; return the folder that has it in its node_modules."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    place = PLACES / f"openai-node-{OPENAI_NODE}"
    if not (place / "installed").exists():
        place.mkdir(parents=True, exist_ok=True)
        _install("npm", "install", "--prefix", str(place), "--no-audit", "--no-fund", f"openai@{OPENAI_NODE}")
        (place / "installed").touch()
    return place


def _install(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=False)
    if done.returncode != 0:
        pytest.fail(f"`{' '.join(command)}` failed:\n{done.stdout}{done.stderr}", pytrace=False)


def this_python() -> Path:
    """Tell the Python that runs the tests: it has the current client."""
    return Path(sys.executable)
