"""Charts of a portrait, as matplotlib figures: SVG for the page, PNG for a folder.

Only here is matplotlib imported, and this module only where charts are asked for: it takes a second to load. Names on
charts are a log's, and a log may say anything: they are never read as mathematics, and the SVG writer escapes them.
"""

from collections.abc import Callable, Sequence
from importlib.resources import files
from io import StringIO
from math import floor, log2
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from gateway.profile.findings import TOP, duration, long_threshold, seconds
from gateway.profile.portrait import Portrait, Profile
from gateway.profile.sketch import Sketch

WIDE, HIGH = 8.0, 3.4  # inches
DPI = 160
POINTS = 240  # of a curve over time
BINS_PER_OCTAVE = 4
BLINK_S = 0.001  # nobody waits for less
SOON_S = 0.01  # what is used again sooner was there at the same time
TIMES = {
    1e-5: "10 µs", 1e-4: "100 µs", 1e-3: "1 ms", 1e-2: "10 ms", 0.1: "100 ms", 1.0: "1 s", 10.0: "10 s", 60.0: "1 min",
    600.0: "10 min", 3600.0: "1 h", 36_000.0: "10 h", 86_400.0: "1 d", 864_000.0: "10 d",
}  # fmt: skip
"""What a logarithmic axis of time is marked with."""
MOST_NAME = 28  # characters
INK = "#1f2933"
SHARES = FuncFormatter(lambda value, _: f"{100 * value:.3g} %")
BLUE, ORANGE, GREEN, GREY = "#2563a8", "#d9822b", "#2f8f5b", "#b8c2cc"
STYLE = files("gateway.profile") / "charts.mplstyle"


def svg(draw: "Draw", profile: Profile) -> str | None:
    """Draw a chart to stand in a page; None where there is nothing to show."""
    with mpl.rc_context(fname=str(STYLE)):
        figure = draw(profile)
        if figure is None:
            return None
        out = StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def save_png(draw: "Draw", profile: Profile, path: Path) -> bool:
    """Draw a chart into a file; say whether there was anything to show.

    Raises:
        OSError: It cannot be written.
    """
    with mpl.rc_context(fname=str(STYLE)):
        figure = draw(profile)
        if figure is not None:
            figure.suptitle(TITLES[draw], x=0.01, ha="left", fontsize=11, fontweight="bold")
            figure.savefig(path, format="png", dpi=DPI)
    return figure is not None


def traffic(profile: Profile) -> Figure | None:
    """Draw arrivals over time: the mean of each stretch, and the busiest slot in it."""
    arrivals = profile.whole.arrivals
    stretches = arrivals.over_time(POINTS)
    if len(stretches) < 2:
        return None
    figure, axes = _empty()
    unit, size = _unit(stretches[-1][0])
    times = [at / size for at, _, _ in stretches]
    axes.fill_between(times, [peak for _, _, peak in stretches], step="post", color=GREY, alpha=0.5, linewidth=0)
    axes.fill_between(times, [mean for _, mean, _ in stretches], step="post", color=BLUE, alpha=0.85, linewidth=0)
    axes.axhline(arrivals.rate, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.set(xlim=(0, times[-1]), ylim=(0, None), xlabel=f"{unit} after the first", ylabel="requests per second")
    each = stretches[1][0] - stretches[0][0]
    _key(
        axes,
        (f"mean of {duration(each)}", BLUE),
        (f"busiest {arrivals.width_s} s in it", GREY),
        (f"mean of all, {arrivals.rate:.3g}/s", INK),
    )
    return figure


def lengths(profile: Profile) -> Figure | None:
    """Draw how long prompts and answers are, side by side on one scale."""
    whole = profile.whole
    if not whole.prompt_tokens.count:
        return None
    figure, axes = _empty()
    for name, sketch, colour in (("prompts", whole.prompt_tokens, BLUE), ("answers", whole.output_tokens, ORANGE)):
        edges, heights = _histogram(sketch)
        if not edges:
            continue
        axes.stairs(heights, edges, fill=True, color=colour, alpha=0.35)
        axes.stairs(heights, edges, color=colour, linewidth=1.2)
        for share, style in ((0.5, "solid"), (0.99, (0, (2, 2)))):
            value = sketch.quantile(share)
            axes.axvline(value, color=colour, linewidth=1.0, linestyle=style)
            axes.annotate(
                f"P{share * 100:.0f} {value:,.0f}",
                (value, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(3, -2 if name == "prompts" else -14),
                textcoords="offset points",
                va="top",
                color=colour,
                fontsize=8,
                bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8},
            )
    _tokens_axis(axes)
    axes.set(ylim=(0, axes.get_ylim()[1] * 1.18), xlabel="tokens", ylabel="of requests")
    axes.yaxis.set_major_formatter(SHARES)
    _key(axes, ("prompts", BLUE), ("answers", ORANGE))
    return figure


def pools(profile: Profile) -> Figure | None:
    """Draw what share of requests, and of all prompt tokens, is longer than a length."""
    sketch = profile.whole.prompt_tokens
    if not sketch.count:
        return None
    figure, axes = _empty()
    values = [value for value, _ in sketch.buckets()]
    above = [sketch.above(value) for value in values]
    axes.plot(values, [tokens for _, tokens in above], color=ORANGE, linewidth=1.8)
    axes.plot(values, [requests for requests, _ in above], color=BLUE, linewidth=1.8)
    best = long_threshold(sketch)
    if best is not None:
        threshold, requests, tokens = best
        axes.axvline(threshold, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
        axes.plot([threshold, threshold], [requests, tokens], "o", color=INK, markersize=4)
        axes.annotate(
            f"{threshold:,} tokens:\n{requests:.1%} of requests,\n{tokens:.1%} of tokens",
            (threshold, 0.97),
            xycoords=("data", "axes fraction"),
            xytext=(6, 0),
            textcoords="offset points",
            va="top",
            fontsize=8,
        )
    _tokens_axis(axes)
    axes.set(ylim=(0, 1.02), xlabel="prompt longer than so many tokens", ylabel="share of all")
    axes.yaxis.set_major_formatter(SHARES)
    _key(axes, ("of requests", BLUE), ("of prompt tokens", ORANGE))
    return figure


def caching(profile: Profile) -> Figure | None:
    """Draw what caches found, beside what they could find, for all and for the largest tenants."""
    groups = [("all", profile.whole)]
    if len(profile.tenants) > 1:
        groups += largest(profile.tenants, TOP - 1)
    groups = [(name, each) for name, each in groups if each.reachable is not None or each.reached is not None]
    if not groups:
        return None
    figure, axes = _empty(1.1 + 0.32 * len(groups))
    places = range(len(groups))
    axes.barh(places, [each.reachable or 0.0 for _, each in groups], height=0.66, color=GREY, alpha=0.6)
    axes.barh(places, [each.reached or 0.0 for _, each in groups], height=0.36, color=GREEN)
    for place, (_, each) in zip(places, groups, strict=True):
        if each.predicted is not None:
            axes.plot([each.predicted] * 2, [place - 0.33, place + 0.33], color=INK, linewidth=1.6)
        words = f"{each.reached:.0%}" if each.reached is not None else "not told"
        if each.reachable is not None:
            words += f" of {each.reachable:.0%}"
        axes.annotate(
            words,
            (max(each.reachable or 0.0, each.reached or 0.0), place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=INK,
        )
    _names(axes, [name for name, _ in groups])
    axes.set(xlim=(0, 1.08), xlabel="of prompt tokens")
    axes.xaxis.set_major_formatter(SHARES)
    _key(axes, ("found", GREEN), ("could be found, without end", GREY), ("expected by the gateway", INK))
    return figure


def reuse(profile: Profile) -> Figure | None:
    """Draw after which time what is cached is used again, by tokens."""
    sketch = profile.beginnings.reused_after_s
    if not sketch.count:
        return None
    figure, axes = _empty(2.8)
    _curve(axes, sketch, BLUE)
    axes.set_xlim(left=max(axes.get_xlim()[0], SOON_S))
    for share in (0.5, 0.95):
        value = sketch.quantile(share)
        axes.plot([value], [share], "o", color=INK, markersize=4)
        axes.annotate(
            f"{share:.0%} within {duration(value)}",
            (value, share),
            xytext=(-7, 4),
            textcoords="offset points",
            ha="right",
            fontsize=8,
        )
    _times_axis(axes)
    axes.set(xlabel="time since it was last used", ylabel="of reused tokens")
    return figure


def beginnings(profile: Profile) -> Figure | None:
    """Draw the beginnings that save most."""
    tops = profile.beginnings.top(TOP)
    if not tops:
        return None
    figure, axes = _empty(1.1 + 0.28 * len(tops))
    axes.barh(range(len(tops)), [top.saved_tokens for top in tops], height=0.62, color=BLUE, alpha=0.85)
    for place, top in enumerate(tops):
        axes.annotate(
            f"{top.uses:,} times",
            (top.saved_tokens, place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    _names(axes, [f"{top.tokens:,} tokens, {top.tenant or 'several'}" for top in tops])
    axes.set(xlim=(0, tops[0].saved_tokens * 1.15), xlabel="prompt tokens that need not be computed, if it is kept")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    return figure


def times(profile: Profile) -> Figure | None:
    """Draw how long requests take and wait, as shares of requests."""
    whole = profile.whole
    kinds = [
        ("queue wait", whole.waited_s, GREY),
        ("time per output token", whole.tpot_s, GREEN),
        ("time to first token", whole.ttft_s, BLUE),
        ("end to end", whole.e2e_s, ORANGE),
    ]
    kinds = [(name, sketch, colour) for name, sketch, colour in kinds if sketch.count]
    if not kinds:
        return None
    figure, axes = _empty()
    for _, sketch, colour in kinds:
        _curve(axes, sketch, colour)
    axes.set_xlim(left=max(axes.get_xlim()[0], BLINK_S))
    axes.axhline(0.95, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.annotate("P95", (1.0, 0.95), xycoords="axes fraction", xytext=(-2, -3), textcoords="offset points",
                  va="top", ha="right", fontsize=8)  # fmt: skip
    _times_axis(axes)
    axes.set(xlabel="seconds or less", ylabel="of requests")
    _key(axes, *((f"{name}, P95 {seconds(sketch.quantile(0.95))}", colour) for name, sketch, colour in kinds))
    return figure


Draw = Callable[[Profile], Figure | None]
CHARTS: dict[str, tuple[Draw, ...]] = {
    "traffic": (traffic,),
    "lengths": (lengths,),
    "pools": (pools,),
    "caching": (caching, reuse),
    "beginnings": (beginnings,),
    "times": (times,),
}
"""By the section that they stand in."""
TITLES: dict[Draw, str] = {
    traffic: "Requests over time",
    lengths: "Lengths of prompts and answers",
    pools: "What long prompts make of requests and of work",
    caching: "Prefix caching: what is found, and what could be",
    reuse: "How long a cache must remember",
    beginnings: "What prompts begin with",
    times: "Times",
}
"""Where no section's title stands above."""


def largest(groups: dict[str, Portrait], count: int) -> list[tuple[str, Portrait]]:
    """Give the groups with most prompt tokens."""
    return sorted(groups.items(), key=lambda item: -item[1].prompt_tokens.total)[:count]


# Parts.


def _empty(high: float = HIGH) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDE, high), layout="constrained")
    return figure, figure.add_subplot()


def _key(axes: Axes, *entries: tuple[str, str]) -> None:
    """Name colours above the chart."""
    marks = [mpl.lines.Line2D([], [], color=colour, linewidth=5) for _, colour in entries]
    axes.legend(
        marks,
        [name for name, _ in entries],
        loc="lower left",
        bbox_to_anchor=(-0.01, 1.0),
        ncols=len(entries) if len(entries) < 4 else 2,
        fontsize=8.5,
        handlelength=1.0,
        columnspacing=1.6,
        borderaxespad=0.2,
    )


def _names(axes: Axes, names: Sequence[str]) -> None:
    """Name the bars, the first on top."""
    axes.set_yticks(range(len(names)), [shortened(name) for name in names], color=INK)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.set_ylim(len(names) - 0.4, -0.6)


def shortened(name: str) -> str:
    """Make a name fit beside a bar, and be one line of signs that can be seen."""
    seen = "".join(sign if sign.isprintable() else "�" for sign in name)
    return seen if len(seen) <= MOST_NAME else seen[: MOST_NAME - 1] + "…"


def _histogram(sketch: Sketch) -> tuple[list[float], list[float]]:
    """Give edges and shares of bins that are as wide as they look on a logarithmic scale."""
    bins: dict[int, float] = {}
    for value, weight in sketch.buckets():
        place = floor(log2(value) * BINS_PER_OCTAVE)
        bins[place] = bins.get(place, 0.0) + weight
    if not bins:
        return [], []
    places = range(min(bins), max(bins) + 1)
    edges = [2 ** (place / BINS_PER_OCTAVE) for place in (*places, places[-1] + 1)]
    return edges, [bins.get(place, 0.0) / sketch.count for place in places]


def _curve(axes: Axes, sketch: Sketch, colour: str) -> None:
    """Draw which share is no greater."""
    values, shares, passed = [], [], sketch.zeros
    for value, weight in sketch.buckets():
        passed += weight
        values.append(value)
        shares.append(passed / sketch.count)
    axes.plot(values, shares, color=colour, linewidth=1.8)


def _tokens_axis(axes: Axes) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(base=4, numticks=16))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short_tokens(value)))


def _times_axis(axes: Axes) -> None:
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.set_xticks([value for value in TIMES if low <= value <= high], minor=False)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: TIMES.get(value, "")))
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(SHARES)


def _short_tokens(value: float) -> str:
    return f"{value / 1024:g}k" if value >= 1024 else f"{value:g}"


def _short(value: float) -> str:
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{sign}"
    return f"{value:g}"


def _unit(span_s: float) -> tuple[str, int]:
    """Say in which unit a stretch of time reads well."""
    for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if span_s >= 3 * size:
            return unit, size
    return "seconds", 1
