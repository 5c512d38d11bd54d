"""Every case of tests/vectors/http/http_cases.jsonl through a real server over the fake service."""

from __future__ import annotations

import copy
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_service import FakeService
from tests.support.live_server import Live, live_server
from tests.support.sse_reader import read_stream

_FILE = Path(__file__).parents[1] / "vectors" / "http" / "http_cases.jsonl"
_CASES = [json.loads(line) for line in _FILE.read_text(encoding="utf-8").splitlines()]
_CHAT = "/v1/chat/completions"

# What later issues bring. Until then a known field is refused by name (400) and an unknown route says so (404).
_TOOL_CALLS = {"T-05a", "TC-01", "TC-01b", "TC-07", "TC-08", "TC-18b"}
_SCHEMAS = {"SO-const", "SO-05", "SO-06", "SO-10"}
_NOT_YET = {case["id"]: 400 for case in _CASES if case["id"] in _TOOL_CALLS | _SCHEMAS}
_ROUTES = ("/v1/embeddings", "/api/chat", "/api/generate", "/v1/responses", "/v1/messages")
_NOT_YET |= {case["id"]: 404 for case in _CASES if case.get("route", "").startswith(_ROUTES)}

# What the fake model cannot do: it repeats the words after a colon.
_SAYS_OTHERWISE = {"T-10": {"has": "Say A and B"}}


@pytest.fixture(scope="module")
def live():
    service = FakeService(context=512)
    with live_server(service) as found:
        yield found
    service.close()


def _bodies(case: dict[str, Any]) -> list[dict[str, Any]]:
    body = copy.deepcopy(case.get("body", {}))
    if "gen" in case:
        piece, count = case["gen"]["user_repeat"]
        number = eval(count, {"ctx": 512})  # noqa: S307 - our own vectors: "3*ctx", "ctx-64"
        text = case["gen"].get("head", "") + piece * number + case["gen"].get("tail", "")
        body["messages"] = [{"role": "user", "content": text}]
    if case["kind"] == "chat":
        body = {"model": "tiny", "max_tokens": 64, "temperature": 0, **body}
    elif "prompt" in body or "messages" in body:
        body = {"model": "tiny", **body}
    if "vary" not in case:
        return [body]
    ((path, values),) = case["vary"].items()
    return [_put(copy.deepcopy(body), path.split("."), value) for value in values]


def _put(body: Any, path: list[str], value: Any) -> Any:
    place = body
    for step in path[:-1]:
        place = place[int(step)] if isinstance(place, list) else place.setdefault(step, {})
    place[path[-1]] = value
    return body


def _plain(live: Live, case: dict[str, Any], body: dict[str, Any]) -> Any:
    route = case.get("route", _CHAT)
    if "text" in case:
        return live.http.post(route, content=case["text"].encode("utf-8", "surrogatepass"))
    return live.http.post(route, json={**body, "stream": None} if route == _CHAT else body)


@pytest.mark.parametrize("case", _CASES, ids=[case["id"] for case in _CASES])
def test_case_answers_as_expected(live: Live, case: dict[str, Any]):
    expect = {**case["expect"], **_SAYS_OTHERWISE.get(case["id"], {})}
    allowed = _NOT_YET.get(case["id"], expect["status"])
    for body in _bodies(case):
        started = time.monotonic()
        reply = _plain(live, case, body)
        assert reply.status_code in (allowed if isinstance(allowed, list) else [allowed]), reply.text
        assert "Traceback" not in reply.text
        assert time.monotonic() - started < 10 * expect.get("within_s", 5)  # ten times: the machine may be busy
        value = reply.json()
        if reply.status_code != 200:
            _check_error(value["error"], expect)
        elif case["id"] not in _NOT_YET:
            _check_answer(live, case, body, value, expect)
        assert live.http.get("/health").status_code == 200


def _check_error(error: dict[str, Any], expect: dict[str, Any]) -> None:
    assert set(error) >= {"message", "type", "param", "code"}
    assert set(error) >= set(expect.get("has_error", ()))


def _check_answer(live: Live, case: dict[str, Any], body: dict[str, Any], value: Any, expect: dict[str, Any]) -> None:
    if "choices" not in value:
        return
    choice = value["choices"][0]
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    assert expect.get("has", "") in text
    assert "not" not in expect or expect["not"] not in text
    if "reason" in expect:
        reasons = expect["reason"] if isinstance(expect["reason"], list) else [expect["reason"]]
        assert choice["finish_reason"] in reasons
    if "completion_tokens" in expect:
        assert value["usage"]["completion_tokens"] == expect["completion_tokens"]
    if "choices" in expect:
        assert [c["index"] for c in value["choices"]] == list(range(expect["choices"]))
    if expect.get("logprobs"):
        assert choice["logprobs"]["content"]
    if "text" not in case:
        _check_stream(live, case, body, value)


def _check_stream(live: Live, case: dict[str, Any], body: dict[str, Any], value: Any) -> None:
    streamed = read_stream(live.http, case.get("route", _CHAT), body)
    assert streamed.status == 200
    assert streamed.done
    for choice in value["choices"]:
        number = choice["index"]
        plain = choice["text"] if "text" in choice else choice["message"]["content"]
        assert streamed.joined("text" if "text" in choice else "content", number) == plain
        assert streamed.reason(number) == choice["finish_reason"]


@pytest.mark.parametrize("case", [c for c in _CASES if c["id"] == "PA-06"])
def test_usage_comes_once_in_a_last_chunk_without_choices(live: Live, case: dict[str, Any]):
    (body,) = _bodies(case)
    streamed = read_stream(live.http, _CHAT, body)
    assert streamed.chunks[-1]["choices"] == []
    assert [chunk for chunk in streamed.chunks if chunk.get("usage")] == [streamed.chunks[-1]]
    without = read_stream(live.http, _CHAT, {**body, "stream_options": None})
    assert not any(chunk.get("usage") for chunk in without.chunks)


def test_separator_characters_are_escaped_on_the_wire(live: Live):
    body = {"messages": [{"role": "user", "content": "Copy exactly: a\u2028b\u0085c\u2029d"}]}
    streamed = read_stream(live.http, _CHAT, body)
    assert streamed.text == "a\u2028b\u0085c\u2029d"
    assert not any(mark.encode() in streamed.raw for mark in "\u2028\u2029\u0085")
