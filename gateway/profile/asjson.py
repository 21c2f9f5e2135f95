"""A profile as numbers, for other programs: seconds, tokens and shares; null where nothing is known."""

from gateway.profile.findings import SHARES, TOP, block_losses
from gateway.profile.portrait import Portrait, Profile
from gateway.profile.sketch import Sketch

FORM = 1  # grows when a figure changes its meaning or goes


def as_json(profile: Profile, lines: int, broken: int) -> dict[str, object]:
    """Give the document of `--json`."""
    return {
        "form": FORM,
        "lines": lines,
        "broken_lines": broken,
        **numbers(profile.whole),
        "is_sampled": profile.beginnings.is_sampled,
        "reused_after_s": spread(profile.beginnings.reused_after_s),
        "lost_to_blocks": {str(block): lost for block, lost in block_losses(profile)},
        "beginnings": [
            {"tokens": top.tokens, "requests": top.uses, "tenant": top.tenant, "saved_tokens": top.saved_tokens}
            for top in profile.beginnings.top(TOP)
        ],
        "tenants": {name: numbers(each) for name, each in profile.tenants.items()},
        "models": {name: numbers(each) for name, each in profile.models.items()},
        "classes": {name: numbers(each) for name, each in profile.classes.items()},
    }


def numbers(portrait: Portrait) -> dict[str, object]:
    """Give the figures of one group."""
    arrivals = portrait.arrivals
    return {
        "requests": portrait.requests,
        "outcomes": dict(portrait.outcomes),
        "endpoints": dict(portrait.endpoints),
        "reasons": dict(portrait.reasons),
        "retried": portrait.retried,
        "arrivals": {
            "count": arrivals.count,
            "span_s": arrivals.span_s if arrivals.count else None,
            "rate": arrivals.rate if arrivals.count else None,
            "peak_rate": arrivals.peak if arrivals.count else None,
            "slot_s": arrivals.width_s,
            "burstiness": arrivals.burstiness if arrivals.count else None,
        },
        "in_flight": portrait.in_flight,
        "held_tokens": portrait.held_tokens,
        "prompt_tokens": spread(portrait.prompt_tokens),
        "output_tokens": spread(portrait.output_tokens),
        "ttft_s": spread(portrait.ttft_s),
        "tpot_s": spread(portrait.tpot_s),
        "e2e_s": spread(portrait.e2e_s),
        "waited_s": spread(portrait.waited_s),
        "predicted_wait_s": spread(portrait.predicted_wait_s),
        "wait_error_s": spread(portrait.wait_error_s),
        "hit_rate": {
            "reached": portrait.reached,
            "predicted": portrait.predicted,
            "reachable": portrait.reachable,
        },
    }


def spread(sketch: Sketch) -> dict[str, float] | None:
    """Give a distribution; None of nothing."""
    if not sketch.count:
        return None
    return {
        "mean": sketch.mean,
        **{name.lower(): sketch.quantile(share) for name, share in SHARES.items()},
        "max": sketch.most,
    }
