"""The capacity sheet of a model: a table of at most 100 columns for people, and the same figures for programs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.quantized import Kept
from policies.capacity import CONTEXT_GIB, GIB, GRAPHS_GIB, MARGIN, NCCL_GIB, Plan, Remedy, Row, Sheet
from policies.layers import Heads, Latent, Shape

WIDTH = 100  # columns: of a page of a review, too
SOURCES = {"shapes": "counted from the shapes", "index": "by the index beside it", "--params": "by --params"}


class Held(NamedTuple):
    """What an engine's KV cache holds."""

    endpoint: str
    models: tuple[str, ...]
    tokens: int | None
    """As it reports; None: it does not say."""
    expected: int
    """By the sheet, for its longest context."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the command found."""

    shape: Shape
    plan: Plan
    kept: Kept
    source: str
    """Of the size of the weights: one of SOURCES."""
    sheet: Sheet
    missed: int | None = None
    """The longest context without margin that something helps, or else the least; None: all have some."""
    longest: int = 0
    """The longest context that fits with margin, up to the longest that was asked for."""
    remedies: Sequence[Remedy] = ()
    fleet: Sequence[Held] = ()
    """What engines report, where a gateway was asked."""


def warnings_of(answer: Answer) -> Iterator[str]:
    """Say what a reviewer must not miss, in whole sentences."""
    sheet = answer.sheet
    if sheet.room_gib <= 0:
        yield (
            f"Does not fit: weights, activations and overhead need {sheet.usable_gib - sheet.room_gib:,.1f} GiB "
            f"of each GPU, and {sheet.usable_gib:,.1f} are usable."
        )
        return
    tight = [row for row in sheet.rows if row.is_tight and row.sequences]
    missing = [row for row in sheet.rows if not row.sequences]
    if tight:
        first, last = tight[0], tight[-1]
        lengths = f"{first.context:,}" + (f" to {last.context:,}" if last is not first else "")
        margins = f"{first.margin:.1%}" + (f" to {last.margin:.1%}" if last is not first else "")
        yield (f"{lengths} tokens: margin {margins}, less than {MARGIN:.0%}: an update of the engine may take it.")
    if missing:
        row, longer = missing[0], ", nor longer ones" * (len(missing) > 1)
        yield (
            f"{row.context:,} tokens do not fit{longer}: a sequence needs {row.gib_per_sequence:,.1f} GiB "
            f"of each GPU, and {sheet.room_gib:,.1f} are left."
        )


def helps_of(answer: Answer) -> Iterator[str]:
    """Say what would make the missed context fit with margin."""
    if answer.missed is None:
        return
    for remedy in answer.remedies:
        row, gpus = remedy.row, remedy.plan.gpus
        yield (
            f"{remedy.change}: {row.sequences:,} sequence{'s' * (row.sequences != 1)} of {answer.missed:,} tokens, "
            f"margin {row.margin:.0%}" + (f", {gpus} GPUs" if gpus != answer.plan.gpus else "")
        )
    if answer.longest:
        yield f"a context of at most {answer.longest:,} tokens"
    if not answer.remedies and not answer.longest:
        yield "nothing that this command tries: a smaller model, or GPUs with more memory"


def content_of(answer: Answer) -> dict[str, object]:
    """Give the figures for programs."""
    shape, plan, sheet, kept = answer.shape, answer.plan, answer.sheet, answer.kept
    return {
        "model": shape.name,
        "parameters": shape.params(),
        "max_context_tokens": shape.max_context,
        "weights": {"dtype": kept.name, "bytes": round(weight_bytes(answer)), "source": answer.source},
        "kv": {
            "bytes_per_value": plan.kv_bytes,
            "bytes_per_token": round(shape.bytes_per_token(plan.kv_bytes)),
            "bytes_per_token_past_windows": round(shape.bytes_per_token(plan.kv_bytes, past_windows=True)),
            "bytes_per_token_per_gpu": round(bytes_per_gpu(answer)),
            "state_bytes_per_sequence": round(shape.state_bytes_per_sequence()),
            "page_tokens": sheet.page_tokens,
        },
        "plan": {
            "gpus": plan.gpus,
            "tp": plan.tp,
            "pp": plan.pp,
            "gpu_memory_gib": round(plan.memory_gib, 3),
            "utilization": plan.utilization,
            "max_batched_tokens": plan.batched_tokens,
            "max_sequences": plan.sequences,
            "block_tokens": plan.block,
        },
        "gpu": {
            "usable_gib": round(sheet.usable_gib, 3),
            "weights_gib": round(sheet.weights_gib, 3),
            "activations_gib": round(sheet.activations_gib, 3),
            "overhead_gib": round(sheet.overhead_gib, 3),
            "kv_room_gib": round(sheet.room_gib, 3),
        },
        "contexts": [_row(row) for row in sheet.rows],
        "warnings": list(warnings_of(answer)),
        "would_fit_with": list(helps_of(answer)),
        "fleet": [
            {"endpoint": each.endpoint, "models": each.models, "tokens": each.tokens, "sheet_tokens": each.expected}
            for each in answer.fleet
        ],
    }


def _row(row: Row) -> Mapping[str, object]:
    return {
        "context_tokens": row.context,
        "sequences": row.sequences,
        "tokens": row.tokens,
        "gib_per_sequence": round(row.gib_per_sequence, 4),
        "margin": round(row.margin, 4),
        "verdict": verdict_of(row),
    }


def verdict_of(row: Row) -> str:
    """Judge a context in a word or three."""
    return "does not fit" if not row.sequences else "tight" if row.is_tight else "fits"


def weight_bytes(answer: Answer) -> float:
    """Give the size of all weights, each once."""
    if answer.plan.weight_bytes is not None:
        return answer.plan.weight_bytes
    return sum(answer.plan.precision.bytes_of(part, 1) for part in answer.shape.parts())


def bytes_per_gpu(answer: Answer) -> float:
    """Give what a token takes of one GPU of the pipeline's average stage, copies included."""
    caches = (layer.cache for layer in answer.shape.layers if isinstance(layer.cache, Heads | Latent))
    return sum(cache.bytes_per_token(answer.plan.kv_bytes, answer.plan.tp) for cache in caches) / answer.plan.pp


def print_sheet(answer: Answer) -> None:
    """Print the sheet."""
    console = Console(width=WIDTH, highlight=False)
    shape, plan = answer.shape, answer.plan
    split = f"tp {plan.tp}" + (f", pp {plan.pp}" if plan.pp > 1 else "")
    gpus = f"{plan.gpus} GPU{'s' * (plan.gpus > 1)} ({split}) of {plan.memory_gib:,.1f} GiB"
    console.print(Text(f"{shape.name}, {amount(shape.params())} parameters, on {gpus}", style="bold"), "", sep="\n")
    console.print(_memory(answer), "", sep="\n")
    for line in _cache_lines(answer):
        console.print(Text(line))
    console.print("", _contexts(answer), sep="\n")
    for line in warnings_of(answer):
        console.print(Text(f"! {line}", style="bold red"))
    if helps := list(helps_of(answer)):
        console.print(Text(f"What would make {answer.missed:,} tokens fit with {MARGIN:.0%} of margin:"))
        for line in helps:
            console.print(Text(f"  {line}"))
    if answer.fleet:
        console.print("", _fleet(answer), sep="\n")


def _memory(answer: Answer) -> Table:
    sheet, plan = answer.sheet, answer.plan
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("memory of one GPU" if plan.gpus == 1 else "memory of the GPU with least room", no_wrap=True)
    table.add_column("GiB", justify="right", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("", style="dim", overflow="fold")
    size = f"{weight_bytes(answer) / GIB:,.1f} GiB in all, {SOURCES[answer.source]}"
    chunk = f"chunk of {plan.batched_tokens:,} tokens, {plan.sequences:,} sequences"
    overhead = f"CUDA {CONTEXT_GIB}, graphs {GRAPHS_GIB}" + (f", NCCL {NCCL_GIB}" if plan.gpus > 1 else "")
    lines = (
        ("usable", sheet.usable_gib, f"{plan.utilization:.0%} of {plan.memory_gib:,.1f} GiB"),
        (f"weights ({answer.kept.name})", sheet.weights_gib, size),
        ("activations", sheet.activations_gib, chunk),
        ("overhead", sheet.overhead_gib, overhead),
        ("room for KV cache", sheet.room_gib, "what is left"),
    )
    for name, gib, note in lines:
        style = "bold" if name.startswith("room") else ""
        table.add_row(name, f"{gib:,.2f}", f"{gib / sheet.usable_gib:.0%}", note, style=style)
    return table


def _cache_lines(answer: Answer) -> Iterator[str]:
    """Say what a token costs."""
    shape, plan = answer.shape, answer.plan
    whole, later = (shape.bytes_per_token(plan.kv_bytes, past_windows=past) for past in (False, True))
    if whole:
        windows = "" if later == whole else f" ({later:,.0f} past the windows)"
        each = f", {bytes_per_gpu(answer):,.0f} on each GPU" if plan.gpus > 1 else ""
        line = f"KV cache: {whole:,.0f} bytes a token{windows}{each}"
        yield line + (f"; pages of {answer.sheet.page_tokens:,} tokens" if answer.sheet.page_tokens else "")
    if (share := bytes_per_gpu(answer) * plan.gpus / whole if whole else 1) > 1.01:
        yield f"  kept {share:.0f} times over, as it cannot be split among as many GPUs"
    if state := shape.state_bytes_per_sequence():
        yield f"State: {state / (1 << 20):,.1f} MiB a sequence, whatever its length"


def _contexts(answer: Answer) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("context", "sequences", "tokens in all", "GiB a sequence and GPU", "margin with one"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row in answer.sheet.rows:
        verdict = verdict_of(row)
        figures = (f"{row.context:,}", f"{row.sequences:,}", f"{row.tokens:,}", f"{row.gib_per_sequence:,.3f}")
        table.add_row(*figures, f"{row.margin:.1%}", verdict, style="" if verdict == "fits" else "bold red")
    return table


def _fleet(answer: Answer) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("endpoint", overflow="fold")
    table.add_column("models", overflow="fold")
    for title in ("tokens it reports", "by this sheet", "reported more"):
        table.add_column(title, justify="right", no_wrap=True)
    for each in answer.fleet:
        reported = "-" if each.tokens is None else f"{each.tokens:,}"
        more = "-" if each.tokens is None or not each.expected else f"{each.tokens / each.expected - 1:+.1%}"
        names = Text(each.endpoint), Text(", ".join(each.models))
        table.add_row(*names, reported, f"{each.expected:,}", more)
    return table


def amount(count: int) -> str:
    """Word a number of parameters."""
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6)):
        if count >= size:
            return f"{count / size:,.2f} {unit}"
    return f"{count:,}"
