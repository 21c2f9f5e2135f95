"""Scenario's workload -> what makes its requests."""

from loadtests.logtrace import LogSource
from loadtests.scenario import Azure, Dirty, Groups, Logged, Mooncake, Overload, Singles, Talks, Workload
from loadtests.traces import AzureSource, MooncakeSource
from loadtests.workloads import DirtySource, GroupSource, OverloadSource, SingleSource, Source, TalkSource, Texts


def source(workload: Workload, seed: str) -> Source:
    """Build it; the same seed makes the same requests."""
    texts = Texts()
    match workload:
        case Singles():
            return SingleSource(workload, seed, texts)
        case Talks():
            return TalkSource(workload, seed, texts)
        case Dirty():
            return DirtySource(workload, seed, texts)
        case Overload():
            return OverloadSource(workload, seed, texts)
        case Groups():
            return GroupSource(workload, seed, texts)
        case Mooncake():
            return MooncakeSource(seed)
        case Azure():
            return AzureSource(workload, seed, texts)
        case Logged():
            return LogSource(workload.path, seed)
