"""Findings: each figure of a portrait beside the decision that it speaks to, in words.

A Section is what a page or a terminal shows: a title, what it decides, rows of figures, and advice that follows from
the figures by a rule that stands here beside its number. Advice says what to look at; it changes nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from gateway.profile.portrait import Portrait, Profile
from gateway.profile.sketch import Sketch

SHARES = {"P50": 0.5, "P95": 0.95, "P99": 0.99}
THRESHOLDS = (4096, 8192, 16_384, 32_768, 65_536, 131_072)
LONG_SHARE, LONG_WORK = 0.1, 0.25  # few requests that make much of the work hold up all others
BLOCKS = (16, 32, 64, 128, 256, 512)
LITTLE_LOSS = 0.02  # of prompt tokens: what larger blocks may cost
POISSON, BURSTY = 1.5, 3.0  # variance over mean
WORTH_CACHING = 0.05  # of prompt tokens
GAP = 0.05  # between what a cache could find and what it found
LONG_WAIT_S = 1.0
TOP = 10


@dataclass(frozen=True, slots=True)
class Section:
    """One question, its figures and what follows."""

    name: str
    title: str
    decides: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    advice: list[str] = field(default_factory=list)


def sections(profile: Profile) -> Iterator[Section]:
    """Give all that there is something to say about."""
    whole = profile.whole
    yield traffic(whole)
    if whole.prompt_tokens.count:
        yield lengths(whole)
        yield pools(whole)
        yield caching(profile)
        if tops := profile.beginnings.top(TOP):
            yield Section(
                "beginnings",
                "What prompts begin with",
                "which prefixes are worth a home, a warm-up, or a rewrite",
                ("tokens", "requests", "saved tokens", "tenant"),
                [
                    (f"{top.tokens:,}", f"{top.uses:,}", f"{top.saved_tokens:,}", top.tenant or "several")
                    for top in tops
                ],
            )
        yield times(profile)
        yield groups("tenants", "By tenant", "limits, weights and classes of tenants", profile.tenants)
        yield groups("models", "By model", "engines and pools for each model", profile.models)


def traffic(whole: Portrait) -> Section:
    """Say how requests come."""
    arrivals = whole.arrivals
    rows = [
        ("requests", f"{whole.requests:,}"),
        ("over", duration(arrivals.span_s) if arrivals.count else "-"),
        *((f"of them {name}", f"{count:,}") for name, count in whole.outcomes.most_common()),
    ]
    advice = []
    if arrivals.count:
        rows += [
            ("mean rate", f"{arrivals.rate:.3g}/s"),
            (f"peak rate (over {arrivals.width_s} s)", f"{arrivals.peak:.3g}/s"),
            ("burstiness (variance/mean; Poisson: 1)", f"{arrivals.burstiness:.2f}"),
            ("at engines at a time, mean", f"{whole.in_flight:.1f} requests, {whole.held_tokens:,.0f} tokens"),
            ("tried more than once", f"{whole.retried:,}"),
        ]
        peak = whole.in_flight * arrivals.peak / arrivals.rate
        if whole.in_flight:
            advice.append(
                f"Room for {whole.in_flight:.0f} requests at a time carries the mean; the busiest {arrivals.width_s} s "
                f"ask for up to {peak:.0f} if answers last as long."
            )
        if arrivals.burstiness > BURSTY:
            advice.append("Arrivals come in bursts: a queue with a bound, and admission.smoothing_s: 0.02, pay here.")
        elif arrivals.burstiness < POISSON:
            advice.append("Arrivals are even (no more than chance): size for the mean and a little more.")
    return Section(
        "traffic", "Traffic", "how many engines, how much concurrency, how deep a queue", ("", ""), rows, advice
    )


def lengths(whole: Portrait) -> Section:
    """Say how long prompts and answers are."""
    rows = [
        ("prompt tokens", *spread(whole.prompt_tokens, count)),
        ("output tokens", *spread(whole.output_tokens, count)),
    ]
    prompts, outputs = whole.prompt_tokens, whole.output_tokens
    advice = []
    if outputs.count:
        advice.append(
            f"A request holds {prompts.mean + outputs.mean / 2:,.0f} tokens of KV cache in the mean and "
            f"{prompts.quantile(0.99) + outputs.quantile(0.99):,.0f} at P99: what an engine has, divided by that, is "
            "how many it can serve at a time (kvlane kv)."
        )
        ratio = prompts.mean / max(1.0, outputs.mean)
        if ratio > 20:
            advice.append(f"{ratio:.0f} prompt tokens for one of output: prefill is the work, and caching decides.")
        elif ratio < 2:
            advice.append("Answers are as long as prompts: decoding is the work, and concurrency decides.")
    return Section("lengths", "Lengths", "concurrency, max_tokens, memory for KV cache", ("", *HEADER), rows, advice)


def pools(whole: Portrait) -> Section:
    """Say what a pool of their own for long prompts would take."""
    prompts = whole.prompt_tokens
    rows = [
        (f"{threshold:,}", *map(percent, prompts.above(threshold)))
        for threshold in THRESHOLDS
        if threshold < prompts.most
    ]
    best = long_threshold(prompts)
    if best is not None:
        advice = (
            f"From {best[0]:,} tokens on, {percent(best[1])} of the requests are {percent(best[2])} of the prompt "
            f"tokens: a pool of their own (pools[].max_uncached_tokens: {best[0]}) keeps short ones from waiting."
        )
    else:
        advice = "No length divides few requests from much of the work: one pool is enough."
    return Section(
        "pools",
        "Long prompts",
        "whether long prompts need a pool of their own, and from which length on",
        ("longer than", "of requests", "of prompt tokens"),
        rows,
        [advice],
    )


def long_threshold(prompts: Sketch) -> tuple[int, float, float] | None:
    """Give the least length that divides few requests from much of the work, with the share of each."""
    for threshold in THRESHOLDS:
        requests, tokens = prompts.above(threshold)
        if requests <= LONG_SHARE and tokens >= LONG_WORK:
            return threshold, requests, tokens
    return None


def caching(profile: Profile) -> Section:
    """Say what prefix caching finds, and what it could find."""
    whole, beginnings = profile.whole, profile.beginnings
    rows = [
        ("hit rate reached (engines tell)", percent(whole.reached)),
        ("hit rate predicted (gateway)", percent(whole.predicted)),
        ("hit rate reachable (cache without end)", percent(whole.reachable)),
    ]
    advice = []
    if whole.reachable is None:
        advice.append("No prompt has a fingerprint: what could be reached is not known.")
        return _cache_section(rows, advice)
    if beginnings.prompts:
        rows.append(("prompts that share a beginning", percent(min(1.0, beginnings.sharing / beginnings.prompts))))
    after = beginnings.reused_after_s
    if after.count:
        rows.append(("used again after", f"P50 {duration(after.quantile(0.5))}, P95 {duration(after.quantile(0.95))}"))
    for block, lost in block_losses(profile):
        rows.append((f"lost to blocks of {block} tokens", percent(lost)))
    if whole.reachable < WORTH_CACHING:
        advice.append("Prompts share next to nothing: prefix caching costs little, and route by load alone.")
    else:
        coarse = [block for block, lost in block_losses(profile) if lost <= LITTLE_LOSS]
        if coarse:
            advice.append(f"Blocks of up to {coarse[-1]} tokens lose no more than {percent(LITTLE_LOSS)}.")
        keep_s = after.quantile(0.95)
        fresh = (1 - whole.reachable) * whole.prompt_tokens.mean + whole.output_tokens.mean
        advice.append(
            f"To find 95 % of that, {duration(keep_s)} of new tokens must stay cached: "
            f"about {rough(fresh * whole.arrivals.rate * min(keep_s, whole.arrivals.span_s))} over the fleet."
        )
        if whole.reached is not None and whole.reachable - whole.reached > GAP:
            advice.append(
                f"{percent(whole.reachable - whole.reached)} of all prompt tokens were computed again although they "
                "had been there: more memory for KV cache, or routing by prefix (least_work)."
            )
        elif whole.reached is not None:
            advice.append("Caches find what there is to find.")
    return _cache_section(rows, advice)


def _cache_section(rows: Sequence[tuple[str, ...]], advice: list[str]) -> Section:
    return Section("caching", "Prefix caching", "prefix caching, block size, memory for it", ("", ""), rows, advice)


def block_losses(profile: Profile) -> list[tuple[int, float]]:
    """Give what share of all prompt tokens is lost to the last block of what is shared, half a block in the mean."""
    beginnings, whole = profile.beginnings, profile.whole
    if not beginnings.sharing or not whole.marked_tokens:
        return []
    hits = min(beginnings.sharing, float(beginnings.prompts))
    return [(block, min(whole.reachable or 0.0, hits * block / 2 / whole.marked_tokens)) for block in BLOCKS]


def times(profile: Profile) -> Section:
    """Say how long requests take and wait."""
    whole = profile.whole
    rows = [
        (name, *spread(sketch, seconds))
        for name, sketch in (
            ("TTFT", whole.ttft_s),
            ("TPOT", whole.tpot_s),
            ("end to end", whole.e2e_s),
            ("queue wait", whole.waited_s),
            ("queue wait, predicted", whole.predicted_wait_s),
            ("error of that", whole.wait_error_s),
        )
        if sketch.count
    ]
    if len(profile.classes) > 1:
        rows += [(f"queue wait, {name}", *spread(each.waited_s, seconds)) for name, each in profile.classes.items()]
    advice = []
    waits, ttft = whole.waited_s.quantile(0.95), whole.ttft_s.quantile(0.95)
    if waits > LONG_WAIT_S:
        advice.append(
            f"One in twenty waits over {seconds(waits)} in the gateway: more engines, or work that can wait in a class "
            "of its own (admission.classes)."
        )
    elif whole.waited_s.count:
        advice.append("Hardly anybody waits in the gateway: there is room for more.")
    if whole.waited_s.count and ttft > 2 * waits + LONG_WAIT_S:
        advice.append("First tokens are late though nobody waits for a place: prefill is what takes time.")
    return Section("times", "Times", "classes of service, their waits and objectives", ("", *HEADER), rows, advice)


def groups(name: str, title: str, decides: str, found: dict[str, Portrait]) -> Section:
    """Set groups side by side, the largest first."""
    ordered = sorted(found.items(), key=lambda item: -item[1].prompt_tokens.total)
    rows: list[tuple[str, ...]] = [
        (
            who,
            f"{each.requests:,}",
            f"{each.prompt_tokens.mean:,.0f}",
            f"{each.prompt_tokens.quantile(0.99):,.0f}",
            f"{each.output_tokens.mean:,.0f}",
            percent(each.reached),
            percent(each.reachable),
            seconds(each.ttft_s.quantile(0.95)) if each.ttft_s.count else "-",
            seconds(each.waited_s.quantile(0.95)) if each.waited_s.count else "-",
        )
        for who, each in ordered[:TOP]
    ]
    if len(ordered) > TOP:
        rows.append((f"and {len(ordered) - TOP} more", *[""] * 8))
    header = ("", "requests", "prompt", "P99", "output", "hits", "reachable", "TTFT P95", "wait P95")
    return Section(name, title, decides, header, rows)


HEADER = ("mean", *SHARES, "max")


def spread(sketch: Sketch, word: Callable[[float], str]) -> tuple[str, ...]:
    """Word a distribution."""
    if not sketch.count:
        return ("-",) * len(HEADER)
    return (word(sketch.mean), *(word(sketch.quantile(share)) for share in SHARES.values()), word(sketch.most))


def count(value: float) -> str:
    """Word a number of tokens."""
    return f"{value:,.0f}"


def rough(value: float) -> str:
    """Word a number of tokens of which nobody needs the last digits."""
    return f"{value / 1e6:.3g} million" if value >= 1e6 else f"{value:,.0f}"


def seconds(value: float) -> str:
    """Word a time that a client waits."""
    return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"


def duration(value: float) -> str:
    """Word a stretch of time."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if value >= 2 * size:
            return f"{value / size:.1f} {unit}"
    return f"{value:.3g} s"


def percent(share: float | None) -> str:
    """Word a share."""
    return "-" if share is None else f"{100 * share:.1f} %"
