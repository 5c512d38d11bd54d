"""Numbers for Prometheus under the prefix `llmrun:`, in a registry of our own.

What requests did is counted here; what engines hold right now is asked of the Service when somebody scrapes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from strata_cli.server.names import Names
from strata_engine.errors import NotFound
from strata_engine.events import Finish
from strata_engine.runtime.api import Load, LoadedModel, Service

_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_LONG = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counters and histograms of one server. Thread-safe."""

    def __init__(self, service: Service, names: Names) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Live(service, names))
        self._requests = self._counter("requests", "HTTP requests", "route", "model", "code")
        self._cancelled = self._counter("requests_cancelled", "sequences whose client went away", "phase")
        self._success = self._counter("request_success", "sequences that ended", "finished_reason")
        self._cached = self._counter("prompt_tokens_cached", "prompt tokens that were reused", "model")
        self._first = self._histogram("time_to_first_token_seconds", "from request to first token", _LONG)
        self._gap = self._histogram("inter_token_latency_seconds", "between tokens", _SHORT)
        self._per_token = self._histogram("request_time_per_output_token_seconds", "mean per token", _SHORT)
        self._whole = self._histogram("e2e_request_latency_seconds", "from request to end", _LONG)
        self._queue = self._histogram("request_queue_time_seconds", "waiting for a place", _LONG)
        self._prefill = self._histogram("request_prefill_time_seconds", "running the prompt", _LONG)
        self._decode = self._histogram("request_decode_time_seconds", "generating", _LONG)

    def request(self, route: str, model: str, code: int) -> None:
        """One HTTP request ended. `model` is "" or a served name, so that clients cannot invent labels."""
        self._requests.labels(route, model, str(code)).inc()

    def cancelled(self, phase: str) -> None:
        """A client went away; `phase`: queued | prefill | decode."""
        self._cancelled.labels(phase).inc()

    def first_token(self, model: str, seconds: float) -> None:
        """First text of a sequence."""
        self._first.labels(model).observe(seconds)

    def gap(self, model: str, seconds: float, tokens: int) -> None:
        """`tokens` came `seconds` after the ones before."""
        for _ in range(tokens):
            self._gap.labels(model).observe(seconds / tokens)

    def finished(self, model: str, finish: Finish, seconds: float) -> None:
        """A sequence ended by itself."""
        self._success.labels(finish.reason).inc()
        self._cached.labels(model).inc(finish.usage.cached_tokens)
        self._whole.labels(model).observe(seconds)
        self._queue.labels(model).observe(finish.timings.queue_s)
        self._prefill.labels(model).observe(finish.timings.prompt_s)
        self._decode.labels(model).observe(finish.timings.decode_s)
        if finish.usage.completion_tokens > 1:
            self._per_token.labels(model).observe(finish.timings.decode_s / (finish.usage.completion_tokens - 1))

    def text(self) -> bytes:
        """The exposition text. Asks the Service, so not for the event loop."""
        return generate_latest(self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"llmrun:{name}", text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"llmrun:{name}", text, ("model",), registry=self._registry, buckets=buckets)


_GAUGES: tuple[tuple[str, str, Any], ...] = (
    ("requests_running", "sequences in the batch", lambda load: load.running),
    ("requests_waiting", "sequences in the queue", lambda load: load.waiting),
    (
        "kv_cache_usage_perc",
        "share of KV pages in use, 0 to 1",
        lambda load: load.kv_pages_used / max(load.kv_pages_total, 1),
    ),
)
_COUNTERS: tuple[tuple[str, str, Any], ...] = (
    ("prompt_tokens", "prompt tokens run", lambda load: load.prompt_tokens_total),
    (
        "prefix_cache_queries",
        "prompt tokens looked up in the prefix cache",
        lambda load: load.prefix_query_tokens_total,
    ),
    ("prefix_cache_hits", "prompt tokens found there, not run again", lambda load: load.prefix_hit_tokens_total),
    ("generation_tokens", "tokens generated", lambda load: load.generation_tokens_total),
    ("prompt_seconds", "seconds spent on prompts", lambda load: load.prompt_s_total),
    ("kernel_compiles", "kernels compiled after a model was ready (always 0)", lambda load: load.kernel_compiles_total),
    ("decode_seconds", "seconds spent generating", lambda load: load.decode_s_total),
    ("spec_decode_num_drafts", "rounds that verified drafts", lambda load: load.spec_rounds_total),
    ("spec_decode_num_draft_tokens", "drafts verified", lambda load: load.spec_drafted_total),
    ("spec_decode_num_accepted_tokens", "drafts accepted", lambda load: load.spec_accepted_total),
)
_BY_POSITION = "llmrun:spec_decode_num_accepted_tokens_per_pos"


class _Live(Collector):
    """Live numbers of every served model, read at scrape time."""

    def __init__(self, service: Service, names: Names) -> None:
        self._service, self._names = service, names

    def describe(self) -> list[Any]:
        """Nothing: registering must not ask the engines."""
        return []

    def collect(self) -> Iterator[Any]:
        """Metric families for one scrape."""
        served = [(one.shown, model) for one, model in self._names.all()]
        loads = [(name, load) for name, model in served if (load := self._load(model)) is not None]
        for name, text, read in _GAUGES:
            yield _filled(GaugeMetricFamily(f"llmrun:{name}", text, labels=("model",)), loads, read)
        for name, text, read in _COUNTERS:
            yield _filled(CounterMetricFamily(f"llmrun:{name}", text, labels=("model",)), loads, read)
        yield _by_position(loads)
        loaded = GaugeMetricFamily("llmrun:model_loaded", "1 = in memory", labels=("model",))
        for name, model in served:
            loaded.add_metric([name], 0 if model is None else 1)
        yield loaded
        seconds = GaugeMetricFamily("llmrun:model_load_seconds", "time of the last load", labels=("model",))
        for name, value in list(self._names.load_s.items()):
            seconds.add_metric([name], value)
        yield seconds

    def _load(self, model: LoadedModel | None) -> Load | None:
        try:
            return None if model is None else self._service.load_numbers(model.name)
        except NotFound:  # unloaded since it was listed
            return None


def _by_position(loads: list[tuple[str, Load]]) -> CounterMetricFamily:
    family = CounterMetricFamily(
        _BY_POSITION, "rounds that accepted this draft (0 = first)", labels=("model", "position")
    )
    for name, load in loads:
        for place, count in enumerate(load.spec_by_position_total):
            family.add_metric([name, str(place)], count)
    return family


def _filled(family: Any, loads: list[tuple[str, Load]], read: Any) -> Any:
    for name, load in loads:
        family.add_metric([name], read(load))
    return family
