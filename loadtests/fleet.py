"""fleet: the simulated engines as a process of their own, until interrupted."""

import asyncio
import signal
import sys
from typing import Annotated

import typer
import uvloop

from loadtests.cluster import Cluster
from loadtests.profiles import PROFILES
from loadtests.settings import Settings
from loadtests.vocabulary import SMALL, small_tokenizer


def fleet(
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="Engines to run.")] = 4,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port of the first; the others follow it.")] = 9001,
    profile: Annotated[str, typer.Option(help=f"GPU and model: {', '.join(PROFILES)}.")] = "bench-8b",
    time_scale: Annotated[
        float, typer.Option(min=0.0, help="1.0 is real time, 0.1 ten times faster, 0 takes no time.")
    ] = 1.0,
    model: Annotated[list[str] | None, typer.Option(help="Model name to serve; may be repeated.")] = None,
    max_context_tokens: Annotated[int, typer.Option(min=1, help="Prompt plus output.")] = 32_768,
    kv_tokens: Annotated[int | None, typer.Option(min=16, help="KV memory; the profile's by default.")] = None,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Sequences in the batch.")] = 256,
    max_queued: Annotated[int | None, typer.Option(min=0, help="Waiting requests, then 503.")] = None,
    mean_output_tokens: Annotated[int, typer.Option(min=1, help="Of answers that end by themselves.")] = 200,
    tokenizer: Annotated[
        str | None, typer.Option(help=f"Folder with a tokenizer.json of a ChatML model; {SMALL!r} is the one within.")
    ] = None,
    startup_delay: Annotated[float, typer.Option(min=0.0, help="Seconds until the engines are ready.")] = 0.0,
) -> None:
    """Run simulated vLLM engines on 127.0.0.1 until interrupted; faults over POST /sim/faults."""
    if profile not in PROFILES:
        raise typer.BadParameter(f"{profile!r}; known are {', '.join(PROFILES)}", param_hint="--profile")
    settings = Settings(
        models=tuple(model or ["sim"]),
        profile=profile,
        time_scale=time_scale,
        max_context_tokens=max_context_tokens,
        kv_tokens=kv_tokens,
        max_num_seqs=max_num_seqs,
        max_queued=max_queued,
        mean_output_tokens=mean_output_tokens,
        startup_delay_s=startup_delay,
        tokenizer=small_tokenizer() if tokenizer == SMALL else tokenizer,
    )
    try:
        cluster = Cluster(count, settings, port)
    except ValueError as exc:
        raise typer.BadParameter(str(exc), param_hint="--tokenizer") from exc
    try:
        uvloop.run(_run(cluster))
    except OSError as exc:
        print(
            f"kvlane-sim: cannot listen on ports {port} to {port + count - 1}: {exc.strerror or exc}", file=sys.stderr
        )
        raise typer.Exit(2) from exc


async def _run(cluster: Cluster) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with cluster:
        for url in cluster.urls:
            print(url, flush=True)
        await stop.wait()
