"""What `/metrics` shows (Prometheus text format). One registry an application: two in a process do not clash."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from corl.memory import host_peak_bytes
from corl.wire import Vote, WeightsTag
from corl_judge.engines.base import Engine, Metered, OnDevice

__all__ = ["CONTENT_TYPE_LATEST", "Metrics"]

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


class _Usage(Collector):
    def __init__(self, engine: Metered) -> None:
        self._engine = engine

    def collect(self) -> Iterator[CounterMetricFamily]:
        usage = self._engine.usage()
        tokens = CounterMetricFamily("corl_remote_tokens", "Tokens that the endpoint counted", labels=["kind"])
        tokens.add_metric(["prompt"], usage.prompt_tokens)
        tokens.add_metric(["completion"], usage.completion_tokens)
        yield tokens
        requests = CounterMetricFamily("corl_remote_requests", "Requests to the endpoint", labels=["outcome"])
        requests.add_metric(["answered"], usage.requests)
        requests.add_metric(["repeated"], usage.failures)
        yield requests


class _DevicePeak(Collector):
    def __init__(self, engine: OnDevice) -> None:
        self._engine = engine

    def collect(self) -> Iterator[GaugeMetricFamily]:
        memory = self._engine.device_memory()
        if memory is not None:
            peak = GaugeMetricFamily("corl_device_memory_peak_bytes", "Accelerator memory at most", labels=["kind"])
            peak.add_metric(["allocated"], memory.allocated)
            peak.add_metric(["reserved"], memory.reserved)
            yield peak


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        self.requests = Counter(
            "corl_requests", "HTTP requests by route, method and status", ["route", "method", "status"], registry=r
        )
        self.latency = Histogram(
            "corl_request_seconds", "HTTP latency by route", ["route"], buckets=SECONDS, registry=r
        )
        self.queue_wait = Histogram(
            "corl_queue_wait_seconds",
            "From submission of a work item to its start",
            ["work"],
            buckets=SECONDS,
            registry=r,
        )
        self.execution = Histogram(
            "corl_execution_seconds", "A work item inside the engine", ["work"], buckets=SECONDS, registry=r
        )
        self.tokens = Counter("corl_generated_tokens", "Tokens generated", ["work"], registry=r)
        self.completions = Counter("corl_generated_completions", "Completions generated", ["work"], registry=r)
        self.items = Counter("corl_work_items", "Work items by how they ended here", ["work", "outcome"], registry=r)
        self.votes = Counter("corl_votes", "Votes given to askers", ["status", "source"], registry=r)
        self.share = Histogram("corl_vote_share", "Share of the winner in votes given", buckets=SHARES, registry=r)
        self.scored = Counter("corl_scored_items", "Score items by status", ["status"], registry=r)
        self.vote_wait = Histogram(
            "corl_vote_wait_seconds", "Waiting for a vote that was about to be filed", buckets=SECONDS, registry=r
        )
        self.desired_version = Gauge("corl_weights_desired_version", "Version asked for", registry=r)
        self.loaded_version = Gauge("corl_weights_loaded_version", "Version that answers", registry=r)
        self.incarnation = Gauge("corl_weights_incarnation", "Trainer incarnation of the loaded weights", registry=r)
        self.reloads = Counter("corl_reloads", "Reloads by outcome", ["outcome"], registry=r)
        self.reload_seconds = Histogram(
            "corl_reload_seconds", "From noticing new weights to serving them", buckets=SECONDS, registry=r
        )
        self.depth = Gauge("corl_queue_items", "Work items in the queue", ["work", "state"], registry=r)
        self.in_flight = Gauge("corl_items_in_flight", "Work items that this process runs", registry=r)
        self.engine_up = Gauge("corl_engine_up", "1 while the engine answers", registry=r)
        host = Gauge("corl_host_memory_peak_bytes", "Host memory of this process at most", registry=r)
        host.set_function(host_peak_bytes)

    def observe(self, engine: Engine) -> None:
        """Show what an engine says of itself: what it costs elsewhere, the memory that it holds."""
        if isinstance(engine, Metered):
            self.registry.register(_Usage(engine))
        if isinstance(engine, OnDevice):
            self.registry.register(_DevicePeak(engine))

    def vote(self, vote: Vote) -> None:
        self.votes.labels(vote.status, vote.source or "none").inc()
        if vote.parsed:
            self.share.observe(vote.share)

    def weights(self, loaded: WeightsTag, desired: WeightsTag | None) -> None:
        self.loaded_version.set(loaded.version)
        self.incarnation.set(loaded.incarnation)
        self.desired_version.set(loaded.version if desired is None else desired.version)

    def render(self) -> bytes:
        return generate_latest(self.registry)
