"""Bring what the bench needs into .bench/: our two C tools, request bodies, nginx, sglang-router, a profiler.

    python loadtests/bench/setup.py        (or: make bench-setup)

Standard library alone, run by the system's Python. Nothing is installed on the system and no service is
started: nginx comes from its Debian package, unpacked; the routers from PyPI, each in a virtual environment
of its own. What cannot be had is said in one line and left out; running it again does only what is missing.
"""

import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
OUT = HERE.parent.parent / ".bench"
SGLANG_ROUTER = "0.3.2"  # the version PERFORMANCE was measured with
TIMEOUT_S = 600.0


class Unavailable(Exception):
    """A part cannot be had here; the message says why, in one line."""


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Run a command and return what it printed.

    Raises:
        Unavailable: it is not there, fails, or takes longer than TIMEOUT_S; with the last line it said.
    """
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired) as exc:
        raise Unavailable(f"{words[0]}: {exc}") from exc
    if done.returncode != 0:
        lines = (done.stderr + done.stdout).strip().splitlines() or ["no output"]
        raise Unavailable(f"`{' '.join(words)}` failed: {lines[-1]}")
    return done.stdout + done.stderr


def tools() -> str:
    """Compile the C tools whose source is newer than their binary."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise Unavailable("no C compiler: install gcc; the bench cannot run without its load and engine")
    for name in ("mock_engine", "loadgen"):
        sources = [HERE / f"{name}.c", *HERE.glob("*.h")]
        binary = OUT / name
        if not binary.exists() or any(source.stat().st_mtime > binary.stat().st_mtime for source in sources):
            run(compiler, "-O2", "-Wall", "-Wextra", "-o", binary, sources[0], "-lm")
    return "mock_engine, loadgen"


def bodies() -> str:
    """Make the request bodies; always, since it is quick and seeded."""
    run(sys.executable, HERE / "mkbodies.py", OUT / "bodies")
    return f"{len(list((OUT / 'bodies').iterdir()))} bodies"


def nginx() -> str:
    """Unpack Debian's nginx, or use what an earlier run unpacked."""
    binary = OUT / "nginx" / "usr" / "sbin" / "nginx"
    if not binary.exists():
        with tempfile.TemporaryDirectory() as folder:
            try:
                run("apt-get", "download", "nginx", cwd=Path(folder))
            except Unavailable:  # most often: this machine has never read the package lists
                run("apt-get", "update")
                run("apt-get", "download", "nginx", cwd=Path(folder))
            for package in Path(folder).glob("*.deb"):
                run("dpkg-deb", "-x", package, OUT / "nginx")
    return run(binary, "-v", "-e", "stderr").strip().splitlines()[-1]


def sglang_router() -> str:
    """Install sglang-router and see its launcher start."""
    python = environment("sglang-router", f"sglang-router=={SGLANG_ROUTER}")
    run(python, "-m", "sglang_router.launch_router", "--help")
    return f"sglang-router {SGLANG_ROUTER}"


def py_spy() -> str:
    """Install py-spy, for `make bench ARGS=--profile`."""
    python = environment("py-spy", "py-spy")
    return run(python.parent / "py-spy", "--version").strip()


def environment(name: str, *requirements: str) -> Path:
    """Make the virtual environment .bench/NAME with the requirements, once; return its Python."""
    folder = OUT / name
    python = folder / "bin" / "python"
    mark = folder / "requirements.txt"
    if not mark.exists() or mark.read_text().split() != list(requirements):
        venv.create(folder, with_pip=True, clear=True)
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements)
        mark.write_text("\n".join(requirements) + "\n")
    return python


def bring(parts: Sequence[tuple[str, Callable[[], str]]]) -> dict[str, bool]:
    """Bring each part, telling one line each; the answer says which are there."""
    there = {}
    for name, part in parts:
        try:
            print(f"bench-setup: {name}: {part()}", flush=True)
            there[name] = True
        except Unavailable as exc:
            print(f"bench-setup: {name}: NOT AVAILABLE, left out: {exc}", flush=True)
            there[name] = False
    return there


def main() -> int:
    """Return 0 when the bench can run; rivals may be missing."""
    OUT.mkdir(exist_ok=True)
    there = bring(
        [
            ("tools", tools),
            ("bodies", bodies),
            ("nginx", nginx),
            ("sglang-router", sglang_router),
            ("py-spy", py_spy),
        ]
    )
    return 0 if there["tools"] and there["bodies"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
