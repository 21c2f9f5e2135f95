"""drive: the load as a command."""

import sys
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console

from loadtests import drive as driving
from loadtests.drive import Target
from loadtests.report import Summary
from loadtests.traffic import Mix, Traffic


def drive(
    url: Annotated[str, typer.Option(help="Gateway or engine; with or without /v1.")],
    model: Annotated[str, typer.Option(help="Model to ask for.")] = "sim",
    rate: Annotated[float, typer.Option(min=0.001, help="Requests per second, Poisson.")] = 10.0,
    duration: Annotated[float, typer.Option(min=0.001, help="Seconds of arrivals; answers are awaited.")] = 10.0,
    json: Annotated[Path | None, typer.Option(help="Write the numbers there; - is standard output.")] = None,
    seed: Annotated[int, typer.Option(help="Same seed, same load.")] = 0,
    system_prompts: Annotated[int, typer.Option(min=1, help="System prompts that requests share.")] = 20,
    system_tokens: Annotated[int, typer.Option(min=5, help="Their mean length.")] = 1000,
    zipf: Annotated[float, typer.Option(min=0.0, help="How unequal their popularity is; 0: equal.")] = 1.0,
    turn_tokens: Annotated[int, typer.Option(min=1, help="Mean length of a request's own text.")] = 100,
    output_tokens: Annotated[int, typer.Option(min=1, help="Mean of max_tokens.")] = 100,
    ignore_eos: Annotated[bool, typer.Option(help="Send ignore_eos: exactly max_tokens come back.")] = False,
    max_concurrency: Annotated[int | None, typer.Option(min=1, help="Open requests; more wait here.")] = None,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds until a request is given up.")] = 600.0,
    api_key: Annotated[str | None, typer.Option(help="Sent as a bearer token.", envvar="KVLANE_API_KEY")] = None,
) -> None:
    """Put open-loop load on an OpenAI endpoint and report what it did."""
    target = Target(
        url=url,
        model=model,
        api_key=api_key,
        timeout_s=timeout,
        max_concurrency=max_concurrency,
        ignore_eos=ignore_eos,
    )
    mix = Mix(system_prompts, system_tokens, zipf, turn_tokens, output_tokens)
    run = uvloop.run(driving.drive(target, Traffic(mix, seed).calls(rate, duration)))
    summary = Summary.of(run)
    if json == Path("-"):
        sys.stdout.buffer.write(summary.json() + b"\n")
        return
    if json is not None:
        json.write_bytes(summary.json() + b"\n")
    summary.show(Console(), url)
    if summary.requests and not summary.succeeded:
        raise typer.Exit(1)
