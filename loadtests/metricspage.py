"""Meters: the simulated engine's /metrics, with the names, labels and buckets of vLLM 0.32's page."""

import time
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from loadtests.engine import EngineModel
from loadtests.kvcache import BLOCK_TOKENS

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"
TTFT_BOUNDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
TOKEN_BOUNDS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_BOUNDS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
REASONS = ("stop", "length", "abort", "error", "repetition")


class Histogram:
    """Counts by bucket."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str, labels: str) -> list[str]:
        """Render it, buckets cumulated."""
        total = 0
        lines = [f"# TYPE {name} histogram"]
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            lines.append(f'{name}_bucket{{engine="0",le="{bound}",{labels}}} {float(total)}')
        lines.append(f'{name}_count{{engine="0",{labels}}} {float(total)}')
        lines.append(f'{name}_sum{{engine="0",{labels}}} {self._sum}')
        return lines


@dataclass(slots=True)
class Meters:
    """What is counted beside the model, in real seconds."""

    model_name: str
    started_at: float = field(default_factory=time.time)
    """Unix time: tells one incarnation from another."""
    finished: Counter[str] = field(default_factory=Counter)
    rejected: int = 0
    ttft: Histogram = field(default_factory=lambda: Histogram(TTFT_BOUNDS))
    tpot: Histogram = field(default_factory=lambda: Histogram(TOKEN_BOUNDS))
    e2e: Histogram = field(default_factory=lambda: Histogram(REQUEST_BOUNDS))

    def page(self, model: EngineModel, http: Counter[tuple[str, str, str]]) -> bytes:
        """Render the page.

        Args:
            http: Requests by handler, method and class of status.
        """
        labels = f'model_name="{self.model_name}"'
        both = f'engine="0",{labels}'
        created = f"{self.started_at + 1:.6f}"
        lines: list[str] = []

        def family(name: str, kind: str, *samples: tuple[str, float]) -> None:
            lines.append(f"# HELP {name} {name.removeprefix('vllm:').replace('_', ' ')}.")
            lines.append(f"# TYPE {name} {kind}")
            lines.extend(f"{name}{{{labels}}} {float(value)}" for labels, value in samples)
            if kind == "counter":
                base = name.removesuffix("_total")
                lines.append(f"# TYPE {base}_created gauge")
                lines.extend(f"{base}_created{{{labels}}} {created}" for labels, _ in samples)

        lines.append("# TYPE process_start_time_seconds gauge")
        lines.append(f"process_start_time_seconds {self.started_at}")
        waiting = model.waiting
        family("vllm:num_requests_running", "gauge", (both, model.running))
        family("vllm:num_requests_waiting", "gauge", (both, waiting))
        by_reason = "vllm:num_requests_waiting_by_reason"
        family(by_reason, "gauge", (f'{both},reason="capacity"', waiting), (f'{both},reason="deferred"', 0))
        states = (("awake", 1), ("weights_offloaded", 0), ("discard_all", 0))
        family("vllm:engine_sleep_state", "gauge", *((f'{both},sleep_state="{state}"', on) for state, on in states))
        family("vllm:kv_cache_usage_perc", "gauge", (both, model.kv_usage))
        hits = model.prefix_hit_tokens
        for name, value in (
            ("prefix_cache_queries", model.prefix_query_tokens),
            ("prefix_cache_hits", hits),
            ("external_prefix_cache_queries", 0),
            ("external_prefix_cache_hits", 0),
            ("num_preemptions", model.preemptions),
            ("prompt_tokens", model.prompt_tokens),
            ("prompt_tokens_cached", hits),
            ("generation_tokens", model.generation_tokens),
        ):
            family(f"vllm:{name}_total", "counter", (both, value))
        family(
            "vllm:request_success_total",
            "counter",
            *((f'engine="0",finished_reason="{reason}",{labels}', self.finished[reason]) for reason in REASONS),
        )
        family(
            "vllm:admission_rejections_total",
            "counter",
            (f'{labels},reason="max_num_queued_reqs"', self.rejected),
            (f'{labels},reason="max_num_queued_tokens"', 0),
        )
        lines += self.ttft.lines("vllm:time_to_first_token_seconds", labels)
        lines += self.tpot.lines("vllm:inter_token_latency_seconds", labels)
        lines += self.tpot.lines("vllm:request_time_per_output_token_seconds", labels)
        lines += self.e2e.lines("vllm:e2e_request_latency_seconds", labels)
        capacity = model.kv.capacity
        config = {
            "block_size": BLOCK_TOKENS,
            "cache_dtype": "auto",
            "effective_attention_block_size": BLOCK_TOKENS,
            "enable_prefix_caching": True,
            "engine": 0,
            "gpu_memory_utilization": 0.92,
            "kv_cache_max_concurrency": capacity * BLOCK_TOKENS / model.max_context_tokens,
            "kv_cache_size_tokens": capacity * BLOCK_TOKENS,
            "num_gpu_blocks": capacity,
            "prefix_caching_hash_algo": "sha256",
            "sliding_window": None,
        }
        family("vllm:cache_config_info", "gauge", (",".join(f'{key}="{value}"' for key, value in config.items()), 1))
        family(
            "http_requests_total",
            "counter",
            *(
                (f'handler="{handler}",method="{method}",status="{status}"', count)
                for (handler, method, status), count in http.items()
            ),
        )
        return ("\n".join(lines) + "\n").encode()
