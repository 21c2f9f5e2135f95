"""The command line: kvlane kv, the sheet of what fits into the memory of the GPUs that serve a model."""

import csv as tables
import io
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import orjson
import typer

from gateway.asking import Unanswered
from gateway.kvfleet import held
from gateway.kvsheet import Answer, content_of, print_sheet
from gateway.modelconfig import index_bytes, shape_of, text_of
from gateway.modelfile import ConfigFault, read_json
from gateway.quantized import KV_BYTES, PLAIN, QUANTIZED, Kept, kept_of
from gateway.terminal import give_up
from policies.capacity import Plan, capacity, helped, longest, problem_of, usual_sequences
from policies.layers import Shape

DOES_NOT_FIT = 1  # exit status: the sheet is made, and says that a context does not fit
VISIBLE = 0.99  # of the GiB that a card is sold by: the driver shows 79.2 to 79.6 of 80, 139.8 of 141
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(mib|gib|gb|g)?", re.IGNORECASE)
COUNT = re.compile(r"(\d+(?:\.\d+)?(?:e\d{1,2})?)([kmbt]?)", re.IGNORECASE)
TOKENS = re.compile(r"(\d+(?:\.\d+)?)([km]?)", re.IGNORECASE)
THOUSANDS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
LENGTHS = {"": 1, "k": 1 << 10, "m": 1 << 20}
MAX_TOKENS = 1 << 30
USUAL = (4096, 8192, 16384, 32768, 65536, 131072, 262144, 1048576)
"""Contexts of the sheet, as far as the model goes, where none are asked for."""


def kv(
    config: Annotated[Path, typer.Option(help="The model's config.json, or its directory.")],
    gpu_memory: Annotated[
        str, typer.Option(help="Of one GPU: 80 as the card is sold by, or 81559MiB as nvidia-smi shows it.")
    ],
    tp: Annotated[int, typer.Option(help="GPUs that split each layer.", min=1, max=1024)] = 1,
    pp: Annotated[int, typer.Option(help="Stages that split the layers.", min=1, max=1024)] = 1,
    dtype: Annotated[
        str, typer.Option(help="Of the weights: auto, bf16, fp16, fp32, fp8, int8, int4, mxfp4, nvfp4.")
    ] = "auto",
    kv_dtype: Annotated[str, typer.Option(help="Of the KV cache: auto, bf16, fp16, fp32, fp8, int8.")] = "auto",
    utilization: Annotated[float, typer.Option(help="Part of the memory that the engine may take.")] = 0.9,
    max_batched_tokens: Annotated[int, typer.Option(help="Of a prefill chunk.", min=1, max=1 << 20)] = 8192,
    max_sequences: Annotated[
        int | None,
        typer.Option(
            help="That run at once; by default as vLLM, 1,024 from 70 GiB (an A100: say 256), else 256.",
            min=1,
            max=1 << 16,
        ),
    ] = None,
    block: Annotated[int, typer.Option(help="Tokens per block of the cache.", min=1, max=1 << 14)] = 16,
    context: Annotated[
        str | None, typer.Option(help="Prompt and output together, like 8k,32k,128k (k: 1,024); up to the model's.")
    ] = None,
    params: Annotated[str | None, typer.Option(help="Parameters, like 70B, where they are known better.")] = None,
    admin: Annotated[str | None, typer.Option(help="Compare with what the engines of this gateway report.")] = None,
    admin_key: Annotated[
        str | None,
        typer.Option(envvar="KVLANE_ADMIN_KEY", help="Its key, if it needs one; better said by the environment."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="With --admin: those that serve this model alone.")] = None,
    json: Annotated[str | None, typer.Option(help="Write JSON to this file, `-` for standard output.")] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV, a line for each context.")] = False,
) -> None:
    """Show what fits on GPUs: weights, activations, KV cache; tokens and sequences by context length."""
    if csv and json == "-":
        give_up("--csv and --json - both want standard output: choose one")
    if not 0.05 <= utilization <= 1:
        give_up(f"--utilization must be from 0.05 to 1, is {utilization:g}")
    file = config / "config.json" if config.is_dir() else config
    try:
        content = read_json(file)
        shape, kept = shape_of(content), kept_of(text_of(content), dtype_of(dtype), kv_dtype_of(kv_dtype))
    except ConfigFault as fault:
        give_up(f"{file}: {fault}")
    source, size = weights_of(file, shape, kept, None if dtype == "auto" else dtype, params)
    memory_gib = memory_of(gpu_memory)
    plan = Plan(
        memory_gib=memory_gib,
        tp=tp,
        pp=pp,
        utilization=utilization,
        batched_tokens=max_batched_tokens,
        sequences=max_sequences or usual_sequences(memory_gib),
        block=block,
        kv_bytes=kept.kv_bytes,
        precision=kept.precision,
        weight_bytes=size,
    )
    if (problem := problem_of(shape, plan)) is not None:
        give_up(problem)
    answer = answer_of(shape, plan, kept, source, contexts_of(context, shape))
    if admin is not None:
        try:
            answer = replace(answer, fleet=held(admin, admin_key, model, shape, plan))
        except Unanswered as problem:
            give_up(str(problem))
    deliver(answer, json, csv)
    if not all(row.sequences for row in answer.sheet.rows):
        raise typer.Exit(DOES_NOT_FIT)


def answer_of(shape: Shape, plan: Plan, kept: Kept, source: str, contexts: Sequence[int]) -> Answer:
    """Compute the sheet, and what would help where it is tight."""
    sheet = capacity(shape, plan, contexts)
    tight = [row.context for row in sheet.rows if row.is_tight]
    if not tight:
        return Answer(shape, plan, kept, source, sheet)
    missed, found = helped(shape, plan, tight)
    return Answer(shape, plan, kept, source, sheet, missed, longest(shape, plan, tight[-1]), found)


def deliver(answer: Answer, json: str | None, csv: bool) -> None:
    """Write what is asked for: a table, unless standard output is to have something else."""
    if json is not None:
        body = orjson.dumps(content_of(answer), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        if json == "-":
            sys.stdout.write(body.decode())
            return
        try:
            Path(json).write_bytes(body)
        except OSError as error:
            give_up(f"{json}: cannot be written: {error.strerror or error}")
    if csv:
        sys.stdout.write(csv_of(answer))
    else:
        print_sheet(answer)


def csv_of(answer: Answer) -> str:
    """Give a line for each context, with the figures of the JSON."""
    rows = content_of(answer)["contexts"]
    assert isinstance(rows, list)
    text = io.StringIO()
    writer = tables.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def weights_of(file: Path, shape: Shape, kept: Kept, dtype: str | None, params: str | None) -> tuple[str, float | None]:
    """Say how large all weights are, and where that is from; None: by the shapes."""
    computed = sum(kept.precision.bytes_of(part, 1) for part in shape.parts())
    if params is not None:
        return "--params", computed / shape.params() * count_of(params)
    if dtype is not None:
        return "shapes", None
    try:
        size = index_bytes(file)
    except ConfigFault as fault:
        give_up(f"{file.with_name('model.safetensors.index.json')}: {fault}")
    if size is None:
        return "shapes", None
    return "index", size * kept.precision.bits / kept.stored_bits


def dtype_of(word: str) -> str:
    """Check what --dtype says."""
    return one_of("--dtype", word, ["auto", *PLAIN, *QUANTIZED])


def kv_dtype_of(word: str) -> str:
    """Check what --kv-dtype says."""
    return one_of("--kv-dtype", word, ["auto", *KV_BYTES])


def one_of(option: str, word: str, words: Sequence[str]) -> str:
    """Check that an option has one of several words."""
    if word not in words:
        give_up(f"{option} must be one of {', '.join(words)}, is {word!r}")
    return word


def memory_of(word: str) -> float:
    """Read the memory of a GPU, in GiB that the driver shows."""
    found = SIZE.fullmatch(word.strip())
    if found is None or not 0 < float(found[1]) <= 1e7:
        give_up(f"--gpu-memory must be like 80 or 81559MiB, is {word!r}")
    unit = (found[2] or "").lower()
    return float(found[1]) * {"mib": 1 / 1024, "gib": 1.0}.get(unit, VISIBLE)


def count_of(word: str) -> float:
    """Read a number of parameters."""
    found = COUNT.fullmatch(word.strip())
    if found is None or not 1 <= (count := float(found[1]) * THOUSANDS[found[2].lower()]) <= 1e15:
        give_up(f"--params must be like 70B or 7e10, is {word!r}")
    return count


def contexts_of(words: str | None, shape: Shape) -> list[int]:
    """Read the lengths of context, the least first; by default the usual ones up to the model's own, and that."""
    most = shape.max_context or USUAL[-1]
    if words is None:
        return [*(length for length in USUAL if length < most), most]
    lengths = set()
    for word in words.split(","):
        found = TOKENS.fullmatch(word.strip())
        length = float(found[1]) * LENGTHS[found[2].lower()] if found else 0
        if not length.is_integer() if isinstance(length, float) else True:
            give_up(f"--context must be like 8k,32k,131072, has {word!r}")
        if not 1 <= length <= MAX_TOKENS:
            give_up(f"--context must be from 1 to {MAX_TOKENS:,} tokens, has {word!r}")
        lengths.add(int(length))
    if max(lengths) > most:
        give_up(f"--context {max(lengths):,} is more than the model's {most:,} (max_position_embeddings)")
    return sorted(lengths)
