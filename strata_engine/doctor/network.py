"""Checks of the network: hubs and the package index, side by side, at most a few seconds; the clock; proxies."""

from __future__ import annotations

import email.utils
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from strata_engine.doctor.check import OK, SKIP, WARN, Check
from strata_engine.errors import LlmrunError

TIMEOUT_S = 3.0
_MOST_SKEW_S = 120.0


@dataclass(frozen=True)
class Answer:
    """What a host said. `date`: seconds since 1970 by its clock, None if it did not say; `fault` "" = reached."""

    name: str
    url: str
    fault: str = ""
    date: float | None = None
    seconds: float = 0.0


def ask_all(urls: Mapping[str, str], ca_file: str = "") -> list[Answer]:
    """Ask every address (name -> URL) at the same time; one that is silent for twice the time-out counts as lost."""
    answers: dict[str, Answer] = {}

    def one(name: str, url: str) -> None:
        answers[name] = ask(name, url, ca_file)

    # Daemon threads: looking up a name has no time-out of its own and must not hold the program back.
    threads = [threading.Thread(target=one, args=pair, daemon=True) for pair in urls.items()]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 2 * TIMEOUT_S
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return [answers.get(name, Answer(name, url, "no answer (DNS?)")) for name, url in urls.items()]


def ask(name: str, url: str, ca_file: str = "") -> Answer:
    """One HEAD; any status counts as reached."""
    import httpx

    from strata_engine.registry.web import make_client

    started = time.monotonic()
    try:
        with make_client(connect_s=TIMEOUT_S, read_s=TIMEOUT_S, ca_file=ca_file, connections=1) as client:
            response = client.head(url)
    except (httpx.HTTPError, httpx.InvalidURL, OSError, LlmrunError) as error:
        return Answer(name, url, _words(error), seconds=time.monotonic() - started)
    return Answer(name, url, date=_seconds(response.headers.get("date", "")), seconds=time.monotonic() - started)


def _words(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:160]


def _seconds(text: str) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(text).timestamp()
    except (TypeError, ValueError):
        return None


def check_hosts(answers: Sequence[Answer]) -> list[Check]:
    """One line a host. A host that is not reached is a warning: another source, or what is downloaded, may do."""
    others = any(not a.fault for a in answers)
    instead = "; another source is used" if others else ""
    remedy = "" if others else "check network, proxy and DNS, or work with --offline"
    return [
        Check(a.name, WARN, f"{_host(a.url)} not reached: {a.fault}{instead}", remedy)
        if a.fault
        else Check(a.name, OK, f"{_host(a.url)} answers in {a.seconds:.2f} s")
        for a in answers
    ]


def skipped(urls: Mapping[str, str]) -> list[Check]:
    """The same lines when the network is off."""
    return [Check(name, SKIP, f"{_host(url) or 'it'} is not asked: offline") for name, url in urls.items()]


def check_clock(answers: Sequence[Answer], now: float | None = None) -> Check:
    """Our clock against the first host that sent its own. A wrong clock makes certificates look invalid."""
    dates = [(a.name, a.date) for a in answers if a.date is not None]
    if not dates:
        return Check("clock", SKIP, "no host to compare with")
    name, date = dates[0]
    skew = (time.time() if now is None else now) - date
    if abs(skew) > _MOST_SKEW_S:
        way = "ahead of" if skew > 0 else "behind"
        return Check("clock", WARN, f"{abs(skew):.0f} s {way} {name}", "set the clock (timedatectl set-ntp true)")
    return Check("clock", OK, f"within {abs(skew):.0f} s of {name}")


def check_proxy(proxies: Mapping[str, str]) -> Check:
    """Which proxies are set; passwords are not shown."""
    shown = [f"{kind}={_without_password(url)}" for kind, url in sorted(proxies.items()) if kind != "no"]
    if not shown:
        return Check("proxy", OK, "none set")
    return Check("proxy", OK, f"{', '.join(shown)} (never used for this machine itself)")


def _without_password(url: str) -> str:
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "(malformed)"
    return f"{parts.scheme}://{'***@' if parts.username else ''}{parts.hostname or ''}{port}"


def _host(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2] or url
