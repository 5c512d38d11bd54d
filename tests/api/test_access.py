"""Who may call: keys, origins, hosts; and the fences around a request's size and form."""

from __future__ import annotations

import gzip

import pytest

from strata_cli.server.options import ServerOptions
from tests.support.fake_service import FakeService
from tests.support.live_server import live_server

CHAT = "/v1/chat/completions"
HI = {"messages": [{"role": "user", "content": "Say: hi"}]}


@pytest.fixture(scope="module")
def service():
    made = FakeService()
    yield made
    made.close()


@pytest.fixture(scope="module")
def live(service):
    with live_server(service, ServerOptions(body_limit_bytes=100_000, headers_after_s=0.5)) as found:
        yield found


@pytest.fixture(scope="module")
def guarded(service):
    with live_server(service, ServerOptions(keys=("first-key", "second-key"), headers_after_s=0.5)) as found:
        yield found


@pytest.mark.parametrize("headers", [
    {"authorization": "Bearer first-key"}, {"authorization": "bearer second-key"}, {"x-api-key": "second-key"},
])  # fmt: skip
def test_either_key_opens_in_either_header(guarded, headers):
    assert guarded.http.post(CHAT, json=HI, headers=headers).status_code == 200


@pytest.mark.parametrize("headers", [
    {}, {"authorization": "Bearer wrong"}, {"authorization": "Basic first-key"}, {"x-api-key": ""},
    {"authorization": "Bearer"}, {"x-api-key": "first-key "[:-2]}, {"authorization": b"Bearer \xff\xfe"},
])  # fmt: skip
def test_anything_else_is_refused_in_openai_shape(guarded, headers):
    reply = guarded.http.post(CHAT, json=HI, headers=headers)
    assert reply.status_code == 401
    assert reply.json()["error"]["type"] == "authentication_error"
    assert reply.headers["www-authenticate"] == "Bearer"
    assert "first-key" not in reply.text


def test_only_health_is_open_without_a_key(guarded):
    assert guarded.http.get("/health").status_code == 200
    assert guarded.http.get("/v1/health").status_code == 200
    assert [guarded.http.get(p).status_code for p in ("/", "/metrics", "/v1/models", "/props", "/nope")] == [401] * 5


def test_preflight_is_answered_before_the_key(guarded):
    headers = {"origin": "http://localhost:3000", "access-control-request-method": "POST",
               "access-control-request-headers": "authorization"}  # fmt: skip
    reply = guarded.http.options(CHAT, headers=headers)
    assert reply.status_code == 204
    assert reply.headers["access-control-allow-origin"] == "http://localhost:3000"
    assert reply.headers["access-control-allow-headers"] == "authorization"


@pytest.mark.parametrize(
    "origin", ["http://localhost:5173", "http://127.0.0.1", "https://[::1]:8443", "http://a.localhost"]
)
def test_loopback_pages_may_call(live, origin):
    reply = live.http.post(CHAT, json=HI, headers={"origin": origin})
    assert reply.status_code == 200
    assert reply.headers["access-control-allow-origin"] == origin
    assert reply.headers["vary"] == "origin"


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://localhost.evil.example", "file://", "http://["]
)
def test_other_pages_may_not_even_post_blindly(live, service, origin):
    before = len(service.requests)
    reply = live.http.post(CHAT, content=b'{"messages":[{"role":"user","content":"x"}]}',
                           headers={"origin": origin, "content-type": "text/plain"})  # fmt: skip
    assert reply.status_code == 403
    assert "access-control-allow-origin" not in reply.headers
    assert len(service.requests) == before


def test_a_foreign_preflight_is_refused(live):
    reply = live.http.options(CHAT, headers={"origin": "https://evil.example", "access-control-request-method": "POST"})
    assert reply.status_code == 403


def test_a_listed_origin_may_call(service):
    with live_server(service, ServerOptions(origins=("https://app.example",))) as live:
        assert live.http.get("/health", headers={"origin": "https://app.example"}).status_code == 200
        assert live.http.get("/health", headers={"origin": "https://app.example.evil"}).status_code == 403


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "[2001:db8::1]:80"])
def test_a_foreign_host_header_is_refused(live, host):
    reply = live.http.get("/v1/models", headers={"host": host})
    assert reply.status_code == 403
    assert reply.json()["error"]["code"] == "host_refused"


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8080", "[::1]:8080", "x.localhost"])
def test_a_loopback_host_header_is_fine(live, host):
    assert live.http.get("/health", headers={"host": host}).status_code == 200


def test_an_open_bind_takes_any_host_header(service):
    with live_server(service, ServerOptions(check_host=False)) as live:
        assert live.http.get("/health", headers={"host": "box.lan:8080"}).status_code == 200
        own = {"host": "box.lan:8080", "origin": "http://box.lan:8080"}
        assert live.http.get("/health", headers=own).status_code == 200


def test_a_body_over_the_limit_is_413(live):
    reply = live.http.post(CHAT, content=b'{"messages":[{"role":"user","content":"' + b"x" * 200_000 + b'"}]}')
    assert reply.status_code == 413
    assert reply.json()["error"]["limit_bytes"] == 100_000


def test_a_chunked_body_over_the_limit_is_413(live):
    reply = live.http.post(CHAT, content=(b"x" * 10_000 for _ in range(20)))
    assert reply.status_code == 413


def test_a_compressed_body_is_415(live):
    reply = live.http.post(CHAT, content=gzip.compress(b"{}"), headers={"content-encoding": "gzip"})
    assert reply.status_code == 415


@pytest.mark.parametrize(("kind", "status"), [
    (None, 200), ("application/json; charset=utf-8", 200), ("text/plain", 200),
    ("application/x-www-form-urlencoded", 200),
    ("multipart/form-data; boundary=x", 415), ("application/xml", 415),
])  # fmt: skip
def test_content_types(live, kind, status):
    headers = {} if kind is None else {"content-type": kind}
    reply = live.http.post(CHAT, content=b'{"messages":[{"role":"user","content":"x"}]}', headers=headers)
    assert reply.status_code == status


@pytest.mark.parametrize("text", [
    b"", b"{", b"[]", b"null", b'"x"', b'{"messages":[],}', b'{"a":NaN}', b'{"a":-Infinity}', b'{"a":1,"a":2}',
    b"\xff{}",
    b"[" * 100_000, b'{"a":' * 3000 + b"1" + b"}" * 3000, b'{"seed":' + b"9" * 6000 + b"}", b'{"a":"\x01"}', b"{}{}",
    b'\xef\xbb\xbf\xef\xbb\xbf{}', "{}".encode("utf-16"),
], ids=range(17))  # fmt: skip
def test_broken_json_is_400_with_a_reason(live, text):
    reply = live.http.post(CHAT, content=text)
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] in ("invalid_json", "missing_required_parameter")


def test_a_position_is_named(live):
    error = live.http.post(CHAT, content=b'{"messages":\n[,]}').json()["error"]
    assert (error["line"], error["column"]) == (2, 2)


def test_a_byte_order_mark_is_skipped_and_lone_surrogates_are_replaced(live, service):
    text = '\ufeff{"messages":[{"role":"user","content":"Say: x \\ud83d y \\ud83d\\ude38"}]}'
    reply = live.http.post(CHAT, content=text.encode())
    assert reply.json()["choices"][0]["message"]["content"] == "x \ufffd y 😸"


def test_unknown_fields_are_listed_or_refused_on_demand(live, service):
    body = {**HI, "wow": 1, "num_ctx": 256, "non\u00e9": 2, "nothing": None, "user": "me", "metadata": {"a": "b"}}
    reply = live.http.post(CHAT, json=body)
    assert reply.status_code == 200
    assert reply.headers["x-llmrun-ignored"] == "wow,num_ctx,non?"
    strict = live.http.post(CHAT + "?strict=1", json=body)
    assert strict.status_code == 400
    assert strict.json()["error"]["param"] == "wow"
    with live_server(service, ServerOptions(strict=True)) as picky:
        assert picky.http.post(CHAT, json=body).status_code == 400
        assert picky.http.post(CHAT, json=HI).status_code == 200


def test_the_request_id_comes_back(live):
    assert live.http.get("/health", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    own = live.http.get("/health").headers["x-request-id"]
    assert len(own) == 32
    assert live.http.get("/health", headers={"x-request-id": "x" * 500}).headers["x-request-id"] != "x" * 500


def test_methods_and_routes(live):
    assert live.http.get("/").text == "llmrun is running\n"
    head = live.http.head("/")
    assert (head.status_code, head.content) == (200, b"")
    assert live.http.options("/v1/models").status_code == 204
    nope = live.http.get("/nope")
    assert nope.status_code == 404
    assert "POST /v1/chat/completions" in nope.json()["error"]["routes"]
    wrong = live.http.put(CHAT, json=HI)
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert wrong.json()["error"]["code"] == "method_not_allowed"


def test_a_prefix_moves_every_route(service):
    with live_server(service, ServerOptions(prefix="/llm", keys=("k",))) as live:
        assert live.http.get("/llm/health").status_code == 200
        assert live.http.get("/llm/v1/models", headers={"x-api-key": "k"}).status_code == 200
        assert live.http.get("/v1/models").status_code == 404
        assert live.http.get("/llmx/health").status_code == 404


def test_metrics_can_be_switched_off(service):
    with live_server(service, ServerOptions(metrics=False)) as live:
        assert live.http.get("/metrics").status_code == 404


def test_a_fault_of_ours_is_a_500_without_inner_details(live, service, caplog, monkeypatch):
    monkeypatch.setattr(service, "script", lambda request, params: 1 / 0)
    with caplog.at_level("CRITICAL", "strata_cli.server"):
        reply = live.http.post(CHAT, json=HI)
    assert reply.status_code == 500
    assert reply.json()["error"]["message"] == "internal error"
    assert "ZeroDivision" not in reply.text


def test_a_request_log_names_no_prompt(service):
    lines: list[str] = []
    with live_server(service, ServerOptions(log_requests=True)) as live:
        live.state.log_line = lines.append
        live.http.post(
            CHAT, json={"messages": [{"role": "user", "content": "Say: secret"}]}, headers={"x-api-key": "kkk"}
        )
        live.http.get("/nope/secret")
    assert len(lines) == 2
    assert "POST /v1/chat/completions 200" in lines[0]
    assert not any("secret" in line or "kkk" in line for line in lines)
