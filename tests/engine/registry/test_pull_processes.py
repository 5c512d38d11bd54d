"""Real `llmrun pull` processes: killed at any byte, two at once, on a full and on a read-only disk."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from strata_engine.registry import locks
from strata_engine.registry.journal import good_bytes
from strata_engine.registry.store import Store
from tests.support.fake_hub import COMMIT, FakeHub
from tests.support.program import environment, run
from tests.support.registry import gguf_like, sha, store_in

MODEL = gguf_like(6_000_000)
SMALL = gguf_like(40_000, seed=2)


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub() as running:
        running.repository("u/big", {"m.gguf": MODEL})
        running.repository("u/small", {"s.gguf": SMALL})
        yield running


def entry(name: str, repo: str, file: str, body: bytes) -> str:
    return (f"  - name: {name}\n    source: {{repo: {repo}, revision: {COMMIT}}}\n"
            f"    files: [{{path: {file}, size: {len(body)}, sha256: {sha(body)}}}]\n")  # fmt: skip


class Site:
    """A home with a catalog of two models from the hub."""

    def __init__(self, home: Path, hub: FakeHub, llmrun_home: Path | None = None) -> None:
        home.mkdir(exist_ok=True)
        self.catalog = home / "models.yaml"
        text = "models:\n" + entry("big", "u/big", "m.gguf", MODEL) + entry("small", "u/small", "s.gguf", SMALL)
        self.catalog.write_text(text)
        self.folder = llmrun_home or home / "llmrun"
        changes = {"HF_ENDPOINT": hub.url, "LLMRUN_OFFLINE": None, "LLMRUN_MODELS": str(self.catalog),
                   "LLMRUN_HOME": str(self.folder)}  # fmt: skip
        self.env = environment(home, **changes)

    @property
    def store(self) -> Store:
        return store_in(self.folder)

    def start(self, *args: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "strata_cli", "pull", *args]
        return subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                start_new_session=True)  # fmt: skip

    @property
    def part(self) -> Path:
        return self.store.paths.partial / f"{sha(MODEL)}.part"


@pytest.fixture
def site(tmp_path: Path, hub: FakeHub) -> Site:
    return Site(tmp_path / "home", hub)


def wait_for(condition, what: str, limit_s: float = 60) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.005)


def size_of(part: Path) -> int:
    try:
        return part.stat().st_blocks * 512
    except OSError:
        return 0


def test_a_pull_killed_at_random_bytes_ends_with_the_exact_file(hub: FakeHub, site: Site):
    served = hub.served[f"/u/big/resolve/{COMMIT}/m.gguf"]
    served.rate = 1_500_000  # each of the connections
    dice = random.Random(7)
    for share in (0.3, 0.6):
        goal = int(len(MODEL) * share * dice.uniform(0.7, 1.2))
        child = site.start("big")
        wait_for(lambda goal=goal, child=child: size_of(site.part) >= goal or child.poll() is not None, "no progress")
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        assert site.store.manifests() == []
        assert list(site.store.blobs()) == []
        assert run(["ls", "--json"], site.env).out.count('"downloaded": true') == 0
    kept = good_bytes(site.part)
    assert kept > 0.1 * len(MODEL)
    served.rate = 0.0
    hub.asked.clear()
    done = run(["pull", "big"], site.env)
    assert done.code == 0, done.err
    assert site.store.blob(sha(MODEL)).read_bytes() == MODEL
    asked = [a.range.removeprefix("bytes=").split("-") for a in hub.asked if a.path.endswith("m.gguf")]
    assert sum(int(b) - int(a) + 1 for a, b in asked) <= len(MODEL) - kept + 1


def test_a_killed_pull_is_never_loaded(hub: FakeHub, site: Site):
    hub.served[f"/u/big/resolve/{COMMIT}/m.gguf"].rate = 1_500_000
    child = site.start("big")
    wait_for(lambda: size_of(site.part) > len(MODEL) // 3, "no progress")
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate()
    done = run(["show", "big", "--files", "--offline"], site.env)
    assert done.code == 3
    assert "is not on this disk" in done.err


def test_ctrl_c_keeps_what_came_and_says_so(hub: FakeHub, site: Site):
    hub.served[f"/u/big/resolve/{COMMIT}/m.gguf"].rate = 1_500_000
    child = site.start("big")
    wait_for(lambda: size_of(site.part) > len(MODEL) // 4, "no progress")
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=20)
    assert child.returncode == 130
    assert "kept" in err
    assert "Traceback" not in err
    assert good_bytes(site.part) > len(MODEL) // 8


def test_two_pulls_of_one_model_fetch_it_once(hub: FakeHub, site: Site):
    hub.served[f"/u/big/resolve/{COMMIT}/m.gguf"].rate = 2_000_000
    children = [site.start("big", "--jsonl") for _ in range(2)]
    outputs = [c.communicate(timeout=60)[0] for c in children]
    assert [c.returncode for c in children] == [0, 0]
    assert site.store.blob(sha(MODEL)).read_bytes() == MODEL
    data = [a for a in hub.asked if a.path.endswith("m.gguf") and a.range != "bytes=0-0"]
    sizes = [a.range.removeprefix("bytes=").split("-") for a in data]
    assert sum(int(b) - int(a) + 1 for a, b in sizes) == len(MODEL)
    events = [json.loads(line) for out in outputs for line in out.splitlines()]
    waiting = [e for e in events if e.get("event") == "waiting"]
    assert waiting
    assert any(0 < e["done_bytes"] < len(MODEL) for e in waiting)


def test_a_small_model_does_not_wait_for_a_big_one(site: Site):
    with locks.hold(site.store.blob_lock(sha(MODEL))), locks.hold(site.store.paths.partial / "big.1.pull"):
        done = run(["pull", "small"], site.env, timeout_s=30)
    assert done.code == 0
    assert site.store.has_blob(sha(SMALL))


def test_a_model_too_big_for_the_disk_is_refused_before_a_byte(hub: FakeHub, tmp_path: Path, small_disk: Path):
    site = Site(tmp_path / "home", hub, small_disk / "llmrun")
    done = run(["pull", "big"], site.env)
    assert done.code == 7
    assert "6 MB more" in done.err
    assert not [a for a in hub.asked if a.path.endswith("m.gguf") and a.range != "bytes=0-0"]


def test_a_disk_that_fills_up_meanwhile_keeps_the_journal(hub: FakeHub, tmp_path: Path, small_disk: Path):
    site = Site(tmp_path / "home", hub, small_disk / "llmrun")
    # An address without a known length passes the check of free space; the disk then fills up.
    hub.serve("/open.gguf", gguf_like(20_000_000, seed=4), ranges="no", no_length=True)
    done = run(["pull", f"{hub.url}/open.gguf"], site.env)
    assert done.code == 7, done.err
    assert "no space left" in done.err
    assert "Traceback" not in done.err
    assert site.store.manifests() == []


def test_a_downloaded_model_on_a_read_only_disk_is_usable(hub: FakeHub, site: Site, read_only_copy):
    assert run(["pull", "small"], site.env).code == 0
    frozen = {**site.env, "LLMRUN_HOME": str(read_only_copy(site.folder))}
    shown = run(["show", "small", "--json"], frozen)
    listed = run(["ls"], frozen)
    again = run(["pull", "small"], frozen)
    assert (listed.code, again.code) == (0, 0), again.err
    assert "small" in listed.out
    assert shown.code == 6  # the bytes only begin like a GGUF file; they were found and read
    refused = run(["pull", "big"], frozen)
    assert refused.code == 1
    assert "Traceback" not in refused.err
    assert "ead-only" in refused.err or "ermission" in refused.err


def test_proxy_variables_do_not_catch_loopback(site: Site):
    proxied = {
        **site.env,
        "HTTP_PROXY": "http://127.0.0.1:1",
        "http_proxy": "http://127.0.0.1:1",
        "ALL_PROXY": "http://127.0.0.1:1",
    }
    assert run(["pull", "small"], proxied).code == 0
