"""The portrait as one HTML file: no script, nothing fetched, everything that a log says escaped."""

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from gateway.profile.findings import Section, duration, percent, seconds
from gateway.profile.portrait import Profile


def page(profile: Profile, title: str, about: str, found: Sequence[Section], charts: Mapping[str, list[str]]) -> str:
    """Write the page.

    Args:
        charts: SVG by the section that it stands in; their writer has escaped them.
    """
    text = (files("gateway.profile") / "page.html").read_text(encoding="utf-8")
    template = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=False).from_string(text)
    return template.render(
        title=title,
        about=about,
        tiles=list(tiles(profile)),
        sections=[(section, [Markup(each) for each in charts.get(section.name, ())]) for section in found],
        version=version("kvlane"),
    )


def tiles(profile: Profile) -> Iterator[tuple[str, str]]:
    """Give the few figures to begin with."""
    whole = profile.whole
    yield f"{whole.requests:,}", "requests"
    if whole.arrivals.count:
        yield duration(whole.arrivals.span_s), "from first to last"
        yield f"{whole.arrivals.rate:.3g}/s", f"mean rate, peak {whole.arrivals.peak:.3g}/s"
        yield f"{whole.prompt_tokens.mean:,.0f}", "prompt tokens, mean"
    if whole.output_tokens.count:
        yield f"{whole.output_tokens.mean:,.0f}", "output tokens, mean"
    if whole.reachable is not None:
        yield percent(whole.reached), f"cache hits, {percent(whole.reachable)} reachable"
    if whole.ttft_s.count:
        yield seconds(whole.ttft_s.quantile(0.95)), "first token, P95"
