"""kvlane kv: the sheet, the same figures for programs, and one line where it cannot be made."""

import asyncio
import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gateway.cli import app as kvlane
from tests.fleet_fixtures import house
from tests.gateway import model_files as files


def run(folder: Path, content: Mapping[str, object], *args: str) -> Result:
    """Write a model's file and run the command on it, for GPUs of 80 GiB by the driver."""
    (folder / "config.json").write_text(json.dumps(content))
    memory = () if "--gpu-memory" in args else ("--gpu-memory", "80GiB")
    return CliRunner().invoke(kvlane, ["kv", "--config", str(folder), *memory, *args])


def figures(folder: Path, content: Mapping[str, object], *args: str) -> dict[str, Any]:
    result = run(folder, content, "--json", "-", *args)
    assert result.stderr == ""
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


def complaint(folder: Path, content: Mapping[str, object], *args: str) -> str:
    result = run(folder, content, *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    return result.stderr.removeprefix("kvlane: ").removesuffix("\n")


def test_the_sheet_of_a_model_that_fits(tmp_path: Path) -> None:
    result = run(tmp_path, files.LLAMA_8B, "--max-sequences", "256", "--context", "8k,128k")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert lines == [
        "LlamaForCausalLM, 8.03 B parameters, on 1 GPU (tp 1) of 80.0 GiB",
        "",
        "memory of one GPU    GiB",
        "usable             72.00  100%  90% of 80.0 GiB",
        "weights (bf16)     14.96   21%  15.0 GiB in all, counted from the shapes",
        "activations         1.35    2%  chunk of 8,192 tokens, 256 sequences",
        "overhead            1.30    2%  CUDA 0.7, graphs 0.6",
        "room for KV cache  54.40   76%  what is left",
        "",
        "KV cache: 131,072 bytes a token; pages of 16 tokens",
        "",
        "context  sequences  tokens in all  GiB a sequence and GPU  margin with one",
        "  8,192         54        445,616                   1.000            74.2%  fits",
        "131,072          3        445,616                  16.000            53.3%  fits",
    ]


@pytest.mark.parametrize("name", [name for name in vars(files) if name.isupper()])
def test_no_line_of_a_sheet_is_wider_than_a_page(tmp_path: Path, name: str) -> None:
    for args in ((), ("--gpu-memory", "24"), ("--gpu-memory", "2")):
        result = run(tmp_path, getattr(files, name), *args)
        assert result.exit_code in (0, 1), result.stderr
        assert max(map(len, result.stdout.splitlines())) <= 100


def test_says_plainly_that_it_does_not_fit_and_what_would_help(tmp_path: Path) -> None:
    result = run(tmp_path, files.LLAMA_70B, "--tp", "2", "--max-sequences", "256", "--context", "8k,32k,128k")
    assert result.exit_code == 1
    text = " ".join(result.stdout.split())
    assert "! 8,192 tokens: margin" in text
    assert "less than 10%: an update of the engine may take it." in text
    assert (
        "! 32,768 tokens do not fit, nor longer ones: a sequence needs 5.0 GiB of each GPU, and 2.4 are left." in text
    )
    assert "What would make 131,072 tokens fit with 10% of margin: --dtype fp8: 1 sequence of 131,072 tokens" in text
    assert "--tp 4: 3 sequences of 131,072 tokens, margin 35%, 4 GPUs" in text


def test_says_that_weights_alone_are_too_large(tmp_path: Path) -> None:
    found = figures(tmp_path, files.DEEPSEEK_V3, "--tp", "8")
    assert found["gpu"]["kv_room_gib"] < 0
    assert found["warnings"][0].startswith("Does not fit: weights, activations and overhead need ")
    assert [row["verdict"] for row in found["contexts"]] == ["does not fit"] * 7


def test_says_that_nothing_helps(tmp_path: Path) -> None:
    found = figures(tmp_path, files.DEEPSEEK_V3, "--gpu-memory", "2")
    assert found["would_fit_with"] == ["nothing that this command tries: a smaller model, or GPUs with more memory"]


def test_offers_the_longest_context_that_fits(tmp_path: Path) -> None:
    found = figures(tmp_path, files.LLAMA_8B, "--gpu-memory", "26GiB", "--context", "128k")
    assert any(line.startswith("a context of at most ") for line in found["would_fit_with"])


def test_programs_get_the_same_figures(tmp_path: Path) -> None:
    found = figures(tmp_path, files.QWEN3_32B, "--tp", "2", "--context", "8k")
    assert found["parameters"] == 32_762_106_880
    assert found["kv"] == {
        "bytes_per_value": 2.0,
        "bytes_per_token": 262_144,
        "bytes_per_token_past_windows": 262_144,
        "bytes_per_token_per_gpu": 131_072,
        "state_bytes_per_sequence": 0,
        "page_tokens": 16,
    }
    assert (found["warnings"], found["would_fit_with"]) == ([], [])
    rows = list(
        csv.DictReader(io.StringIO(run(tmp_path, files.QWEN3_32B, "--tp", "2", "--context", "8k", "--csv").stdout))
    )
    assert [{name: str(value) for name, value in row.items()} for row in found["contexts"]] == rows


def test_is_near_what_llm_d_measured_for_qwen3_32b(tmp_path: Path) -> None:
    # on two H100; how much memory the engines were allowed is not told; 0.95 is a guess
    found = figures(tmp_path, files.QWEN3_32B, "--tp", "2", "--gpu-memory", "80", "--utilization", "0.95")
    assert found["contexts"][0]["tokens"] == pytest.approx(307_328, rel=0.05)


def test_writes_json_to_a_file_beside_the_table(tmp_path: Path) -> None:
    file = tmp_path / "sheet.json"
    result = run(tmp_path, files.LLAMA_8B, "--json", str(file))
    assert "room for KV cache" in result.stdout
    assert json.loads(file.read_text())["model"] == "LlamaForCausalLM"
    assert complaint(tmp_path, files.LLAMA_8B, "--json", "/nowhere/x.json").startswith("/nowhere/x.json: cannot be")


def test_a_cache_of_8_bits_holds_twice_as_much(tmp_path: Path) -> None:
    whole, half = (figures(tmp_path, files.LLAMA_8B, "--kv-dtype", dtype) for dtype in ("auto", "fp8"))
    assert half["contexts"][0]["tokens"] == pytest.approx(2 * whole["contexts"][0]["tokens"], rel=1e-3)


def test_heads_are_copied_where_there_are_more_gpus(tmp_path: Path) -> None:
    result = run(tmp_path, files.LLAMA_8B, "--tp", "16")
    assert "131,072 bytes a token, 16,384 on each GPU" in result.stdout
    assert "kept 2 times over, as it cannot be split among as many GPUs" in result.stdout


def test_a_state_is_told(tmp_path: Path) -> None:
    assert "State: 73.7 MiB a sequence, whatever its length" in run(tmp_path, files.QWEN3_NEXT, "--tp", "2").stdout
    assert "KV cache:" not in run(tmp_path, files.MAMBA2_2B, "--context", "4k").stdout


def test_the_index_beside_the_file_says_the_true_size(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 20 << 30}}))
    found = figures(tmp_path, files.LLAMA_8B)
    assert found["weights"] == {"dtype": "bf16", "bytes": 20 << 30, "source": "index"}
    assert found["gpu"]["weights_gib"] == 20
    halved = figures(tmp_path, {**files.LLAMA_8B, "torch_dtype": "float32"})  # as vLLM serves it
    assert halved["weights"]["bytes"] == 10 << 30
    assert figures(tmp_path, files.LLAMA_8B, "--dtype", "fp8")["weights"]["source"] == "shapes"
    (tmp_path / "model.safetensors.index.json").write_text("{")
    assert "model.safetensors.index.json: is not JSON" in complaint(tmp_path, files.LLAMA_8B)


def test_parameters_that_are_said_stand_above_those_counted(tmp_path: Path) -> None:
    found = figures(tmp_path, files.LLAMA_8B, "--params", "10B")
    assert found["weights"] == {"dtype": "bf16", "bytes": 20_000_000_000, "source": "--params"}


@pytest.mark.parametrize(
    ("word", "gib"), [("80", 79.2), ("80GB", 79.2), ("81559MiB", 79.647), ("44.5GiB", 44.5), ("44.5 gib", 44.5)]
)
def test_memory_is_what_the_card_is_sold_by_or_what_the_driver_shows(tmp_path: Path, word: str, gib: float) -> None:
    assert figures(tmp_path, files.LLAMA_8B, "--gpu-memory", word)["plan"]["gpu_memory_gib"] == pytest.approx(gib)


def test_contexts_are_the_usual_ones_up_to_the_models(tmp_path: Path) -> None:
    rows = figures(tmp_path, files.QWEN3_32B)["contexts"]
    assert [row["context_tokens"] for row in rows] == [4096, 8192, 16384, 32768, 40960]
    asked = figures(tmp_path, files.QWEN3_32B, "--context", "32k, 1000,32768")["contexts"]
    assert [row["context_tokens"] for row in asked] == [1000, 32768]


@pytest.mark.parametrize(
    ("args", "wrong"),
    [
        (("--gpu-memory", "lots"), "--gpu-memory must be like 80 or 81559MiB, is 'lots'"),
        (("--gpu-memory", "0"), "--gpu-memory must be like 80 or 81559MiB, is '0'"),
        (("--params", "many"), "--params must be like 70B or 7e10, is 'many'"),
        (("--dtype", "fp7"), "--dtype must be one of auto, bf16, fp16, fp32, fp8, int8, int4, mxfp4, nvfp4, is 'fp7'"),
        (("--kv-dtype", "int4"), "--kv-dtype must be one of auto, bf16, fp16, fp32, fp8, int8, is 'int4'"),
        (("--utilization", "1.5"), "--utilization must be from 0.05 to 1, is 1.5"),
        (("--context", "8k,long"), "--context must be like 8k,32k,131072, has 'long'"),
        (("--context", "0.3"), "--context must be like 8k,32k,131072, has '0.3'"),
        (("--context", "0"), "--context must be from 1 to 1,073,741,824 tokens, has '0'"),
        (("--context", "1m"), "--context 1,048,576 is more than the model's 131,072 (max_position_embeddings)"),
        (("--tp", "3"), "32 attention heads do not divide by --tp 3"),
        (("--pp", "40"), "--pp 40 is more than the 32 layers"),
        (("--csv", "--json", "-"), "--csv and --json - both want standard output: choose one"),
    ],
)
def test_says_in_one_line_what_is_wrong_with_an_option(tmp_path: Path, args: tuple[str, ...], wrong: str) -> None:
    assert complaint(tmp_path, files.LLAMA_8B, *args) == wrong


def test_says_in_one_line_what_is_wrong_with_the_file(tmp_path: Path) -> None:
    assert complaint(tmp_path, {"model_type": "llama"}) == (
        f"{tmp_path}/config.json: has no hidden_size or n_embd or d_model or model_dim"
    )


# Beside what a fleet reports.


async def test_compares_with_what_the_engines_of_a_gateway_report(tmp_path: Path) -> None:
    async with house(2) as whole:
        await whole.rests()
        args = ("--context", "8k", "--admin", whole.gateway.admin_url)
        found = await asyncio.to_thread(figures, tmp_path, files.LLAMA_8B, *args, "--model", "sim")
        table = await asyncio.to_thread(run, tmp_path, files.LLAMA_8B, *args)
        missing = await asyncio.to_thread(complaint, tmp_path, files.LLAMA_8B, *args, "--model", "other")
    assert [row["models"] for row in found["fleet"]] == [["sim"], ["sim"]]
    assert {row["tokens"] for row in found["fleet"]} == {400_000}
    assert {row["sheet_tokens"] for row in found["fleet"]} == {found["contexts"][0]["tokens"]}
    assert "400,000" in table.stdout
    assert max(map(len, table.stdout.splitlines())) <= 100
    assert missing == f"{args[-1]}: no endpoint serves other"


async def test_a_gateway_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    args = ("--admin", "http://127.0.0.1:1")
    assert (await asyncio.to_thread(complaint, tmp_path, files.LLAMA_8B, *args)).startswith("http://127.0.0.1:1: ")
    args = ("--admin", "nowhere")
    line = await asyncio.to_thread(complaint, tmp_path, files.LLAMA_8B, *args)
    assert line == "an admin listener is at http://host:port, not 'nowhere'"
