"""What opt-in tests bring of other people's programs: into places of their own under .bench/, never our environment."""

import subprocess
import venv
from pathlib import Path

import pytest

BENCH = Path(__file__).parent.parent / ".bench"
LIMIT_S = 600.0


def environment(place: Path, *requirements: str) -> Path:
    """Make a virtual environment that has the requirements, once; return its Python."""
    python = place / "bin" / "python"
    if not (place / "installed").exists():
        venv.create(place, with_pip=True, clear=True)
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements)
        (place / "installed").touch()
    return python


def run(*command: str | Path) -> None:
    """Run a command that brings something; where it fails, so does the test that wants it."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode != 0:
        pytest.fail(f"`{' '.join(words)}` failed:\n{done.stdout}{done.stderr}", pytrace=False)
