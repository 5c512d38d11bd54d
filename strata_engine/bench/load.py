"""A server under load: requests at a rate or with a fixed number in flight, and the statistics of what clients saw."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from strata_engine.bench.report import rounded
from strata_engine.bench.requests import Sample, run_one
from strata_engine.errors import ServerError

SCHEMA = "llmrun.bench.serve.v1"
METRICS = ("ttft", "tpot", "itl", "e2el")
_WORDS = ("the", "of", "and", "to", "in", "a", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on", "not",
          "he", "his", "but", "at", "are", "this", "have", "from", "or", "had", "an", "they", "which")  # fmt: skip


@dataclass(frozen=True)
class LoadPlan:
    """What is sent. `rate` requests a second with random gaps, inf = all at once; `concurrency` most in flight."""

    url: str
    model: str
    requests: int = 32
    concurrency: int = 8
    rate: float = float("inf")
    prompt_tokens: int = 128
    max_tokens: int = 64
    seed: int = 0
    api_key: str = field(default="", repr=False)
    timeout_s: float = 600.0
    warmups: int = 1


@dataclass(frozen=True)
class LoadResult:
    """All samples and the wall time from the first request sent to the last byte received, in seconds."""

    plan: LoadPlan
    samples: tuple[Sample, ...]
    wall_s: float


def first_model(url: str, api_key: str = "") -> str:
    """The first model a server lists. Raises ServerError."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        with httpx.Client(headers=headers, timeout=10.0, trust_env=not _is_local(url)) as client:
            reply = client.get(f"{url}/v1/models")
            return str(reply.raise_for_status().json()["data"][0]["id"])
    except httpx.HTTPStatusError as error:
        raise ServerError(f"{url} answered {error.response.status_code}", "LLMRUN_API_KEY, or --url") from error
    except httpx.HTTPError as error:
        raise ServerError(f"no answer from {url}: {error or type(error).__name__}", "llmrun serve, or --url") from error
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise ServerError(f"{url} lists no models", "--model NAME") from error


def _is_local(url: str) -> bool:
    # A proxy from the environment must not see loopback.
    return httpx.URL(url).host in ("localhost", "127.0.0.1", "::1")


def measure(plan: LoadPlan, done: Callable[[int], None] = lambda count: None) -> LoadResult:
    """Run the plan; `done` gets the number of finished requests. Raises ServerError when the server cannot be used."""
    return asyncio.run(_measure(plan, done))


async def _measure(plan: LoadPlan, done: Callable[[int], None]) -> LoadResult:
    headers = {"Authorization": f"Bearer {plan.api_key}"} if plan.api_key else {}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=plan.url, headers=headers, timeout=plan.timeout_s, limits=limits, trust_env=not _is_local(plan.url)
    ) as client:
        for number in range(plan.warmups):
            sample = await run_one(client, body(plan, -1 - number))
            if sample.error:
                raise ServerError(
                    f"the server at {plan.url} did not answer: {sample.error}", "llmrun ps, or another --url"
                )
        return await _timed(plan, client, done)


async def _timed(plan: LoadPlan, client: httpx.AsyncClient, done: Callable[[int], None]) -> LoadResult:
    gate = asyncio.Semaphore(plan.concurrency)
    finished = 0

    async def one(number: int, start_s: float) -> Sample:
        nonlocal finished
        await asyncio.sleep(start_s)
        async with gate:
            sample = await run_one(client, body(plan, number))
        finished += 1
        done(finished)
        return sample

    started = time.perf_counter()
    jobs = [one(number, start_s) for number, start_s in enumerate(arrivals(plan))]
    samples = await asyncio.gather(*jobs)
    return LoadResult(plan, tuple(samples), time.perf_counter() - started)


def arrivals(plan: LoadPlan) -> list[float]:
    """Seconds after the start at which each request arrives: exponential gaps at the given rate."""
    draw = random.Random(plan.seed)
    at, found = 0.0, []
    for _ in range(plan.requests):
        found.append(at)
        at += draw.expovariate(plan.rate) if plan.rate != float("inf") else 0.0
    return found


def body(plan: LoadPlan, number: int) -> dict[str, Any]:
    """A completion of fixed length behind a prompt that no cache has seen: one common word is about one token."""
    draw = random.Random(f"{plan.seed}/{number}")
    prompt = " ".join(draw.choice(_WORDS) for _ in range(plan.prompt_tokens))
    return {
        "model": plan.model,
        "prompt": prompt,
        "max_tokens": plan.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def summary(result: LoadResult, percentiles: Sequence[float], goodput: dict[str, float]) -> dict[str, Any]:
    """The JSON document. `goodput`: metric -> limit in ms; a request counts when it meets all of them."""
    good = [s for s in result.samples if not s.error]
    wall = max(result.wall_s, 1e-9)
    tokens_in, tokens_out = sum(s.prompt_tokens for s in good), sum(s.output_tokens for s in good)
    plan = result.plan
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "url": plan.url,
        "model": plan.model,
        "requests": len(result.samples),
        "failed": len(result.samples) - len(good),
        "errors": sorted({s.error for s in result.samples if s.error})[:5],
        "concurrency": plan.concurrency,
        "rate": None if plan.rate == float("inf") else plan.rate,
        "wall_s": rounded(result.wall_s),
        "prompt_tokens": tokens_in,
        "output_tokens": tokens_out,
        "requests_per_s": rounded(len(good) / wall),
        "output_tps": rounded(tokens_out / wall),
        "total_tps": rounded((tokens_in + tokens_out) / wall),
        "metrics_ms": {name: spread(values_ms(good, name), percentiles) for name in METRICS},
    }
    if goodput:
        met = sum(all(_meets(sample, name, limit) for name, limit in goodput.items()) for sample in good)
        found["goodput"] = {"limits_ms": goodput, "requests": met, "requests_per_s": rounded(met / wall)}
    return found


def values_ms(samples: Sequence[Sample], metric: str) -> list[float]:
    """All values of ttft, tpot, itl or e2el in milliseconds."""
    if metric == "itl":
        return [1000 * gap for s in samples for gap in s.gaps_s]
    read: dict[str, Callable[[Sample], float | None]] = {
        "ttft": lambda s: s.first_s,
        "tpot": lambda s: s.per_token_s,
        "e2el": lambda s: s.last_s,
    }
    return [1000 * value for s in samples if (value := read[metric](s)) is not None]


def _meets(sample: Sample, metric: str, limit_ms: float) -> bool:
    values = values_ms([sample], metric)
    return not values or statistics.mean(values) <= limit_ms


def spread(values: Sequence[float], percentiles: Sequence[float]) -> dict[str, float]:
    """n, mean, median, std and the percentiles; only n for no values."""
    if not values:
        return {"n": 0}
    ordered = sorted(values)
    found = {
        "n": len(ordered),
        "mean": rounded(statistics.fmean(ordered)),
        "median": rounded(statistics.median(ordered)),
        "std": rounded(statistics.pstdev(ordered)),
    }
    return found | {f"p{p:g}": rounded(percentile(ordered, p)) for p in percentiles}


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Linear interpolation between the two nearest ranks of sorted values."""
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
