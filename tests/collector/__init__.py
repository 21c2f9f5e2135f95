"""Traces through a collector that is not ours: `kvlane serve` sends, Rotel takes and passes on, we read what arrives.

    make test-collector

Rotel is an OpenTelemetry collector in Rust; PyPI's package `rotel` has its program (10 MB), and is brought into
.bench/collector/, once. It decodes what it is sent by a model of OTLP of its own, and encodes it anew.
"""
