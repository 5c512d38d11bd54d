"""RemoteService: the Service of a running server, over its HTTP API. Loopback is never sent through a proxy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx

from strata_cli import client_wire as wire
from strata_cli.address import Address, parse_address
from strata_cli.client_stream import RemoteStream
from strata_cli.client_text import RemoteTokenizer
from strata_cli.server_record import ServerRecord, read_record
from strata_engine.chat import ChatRequest, TokenRequest
from strata_engine.config import EngineConfig, SamplingParams
from strata_engine.errors import NotFound, ServerError, UsageError
from strata_engine.events import Notice
from strata_engine.runtime.api import Load, LoadedModel, Report, Sink
from strata_engine.text.base import TextRules

if TYPE_CHECKING:
    from strata_cli.app import App

_CONNECT_S, _SILENCE_S = 5.0, 90.0  # a live server sends something every 15 s
_ROOT = "/api/llmrun/v1"


def find_server(app: App, url: str | None = None) -> RemoteService | None:
    """The server to talk to: `url`, else LLMRUN_HOST (or `host` of the config file), else the one of server.json.

    None when there is none. Raises ServerError (exit 9) when an explicit `url` does not answer or is not llmrun.
    """
    key = str(app.settings.get("api_key") or "")
    if url is not None:
        service = RemoteService(parse_address(url), key)
        try:
            service.check()
        except ServerError:
            service.close()
            raise
        return service
    for place in _places(app):
        service = RemoteService(place, key)
        if service.alive():
            return service
        service.close()
    return None


def _places(app: App) -> list[Address | ServerRecord]:
    found: list[Address | ServerRecord] = []
    if app.settings.origin("host") != "built-in":
        found.append(parse_address(str(app.settings.get("host")), int(app.settings.get("port"))))
    record = read_record(app.paths.server_file)
    return found if record is None else [*found, record]


class RemoteService:
    """Thread-safe. Model names are those the server prints."""

    def __init__(self, where: Address | ServerRecord, key: str = "") -> None:
        unix = where.unix if isinstance(where, ServerRecord) else ""
        address = where.address if isinstance(where, ServerRecord) else where
        self.url = f"unix:{unix}" if unix else address.url
        self._http = httpx.Client(
            base_url=f"http://localhost{address.prefix}" if unix else address.url,
            headers={"authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(_SILENCE_S, connect=_CONNECT_S),
            transport=httpx.HTTPTransport(uds=unix) if unix else None,
            trust_env=not (unix or Address(_host(address)).loopback),
        )

    def __enter__(self) -> RemoteService:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check(self) -> None:
        """Raises ServerError when nobody answers or it is not llmrun."""
        reply = self._send("GET", "/health")
        if not reply.headers.get("server", "").startswith("llmrun"):
            raise ServerError(f"{self.url} answers, but is not an llmrun server", "llmrun serve")

    def alive(self) -> bool:
        """Like check, as a question."""
        try:
            self.check()
        except ServerError:
            return False
        return True

    def loaded(self) -> list[LoadedModel]:
        """The models in the server's memory."""
        return [wire.loaded_model(value) for value in self.status()["models"]]

    def status(self) -> dict[str, Any]:
        """The whole status document, as ps prints it."""
        return self._json("GET", f"{_ROOT}/status")

    def load(self, model: str, config: EngineConfig | None = None) -> LoadedModel:
        """Load one of the server's models; how is the server's own matter, so `config` must be None."""
        if config is not None:
            raise UsageError("load settings are the server's own and cannot be changed by a client", "--no-server")
        return wire.loaded_model(self._json("POST", f"{_ROOT}/load", {"model": model})["model"])

    def unload(self, model: str, timeout_s: float = 30.0) -> int:
        """Wait until the model is out of memory; bytes freed."""
        return int(self.unload_some({"model": model, "timeout_s": timeout_s})["freed_bytes"])

    def unload_some(self, body: dict[str, Any]) -> dict[str, Any]:
        """The unload route as it is: {"all": true} frees everything."""
        wait_s = float(body.get("timeout_s", 30.0)) + _SILENCE_S
        return self._json("POST", f"{_ROOT}/unload", body, wait_s)

    def stream(
        self, model: str, request: ChatRequest | TokenRequest, params: SamplingParams, sink: Sink | None = None
    ) -> RemoteStream:
        """Start a sequence there. Raises what the server refused it with."""
        path, body = wire.request_body(model, request, params)
        reply = self._send("POST", path, body, streamed=True)
        return RemoteStream(reply, sink)

    def text(self, model: str) -> TextRules:
        """The model's tokenizer over HTTP; its chat template stays on the server (`chat` is None)."""
        props = self._json("GET", str(httpx.URL("/props", params={"model": model})))
        facts = props["tokenizer"]
        tokenizer = None if facts is None else RemoteTokenizer(self._ask, model, facts)
        return TextRules(tokenizer, None, props["chat_template"])

    def load_numbers(self, model: str) -> Load:
        """Live numbers of one engine."""
        return wire.load_numbers(self._entry(model)["load"])

    def report(self, model: str) -> Report:
        """Choices, memory and speed of one engine."""
        value = self._entry(model)["report"]
        notices = tuple(Notice(n["code"], n["message"]) for n in value["notices"])
        speculation = value.get("speculation", {})
        return Report(tuple(value["choices"]), value["memory"], value["speed"], notices, speculation)

    def close(self) -> None:
        """Close the connections; the server goes on."""
        self._http.close()

    def _entry(self, model: str) -> dict[str, Any]:
        for value in self.status()["models"]:
            if model in (value["name"], value["reference"], value["shown"]):
                return value
        raise NotFound(f"{model} is not loaded on {self.url}", "llmrun ps")

    def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._json("POST", path, body)

    def _json(self, method: str, path: str, body: Any = None, wait_s: float | None = None) -> Any:
        reply = self._send(method, path, body, wait_s=wait_s)
        return wire.read_json(reply.content, reply.status_code)

    def _send(
        self, method: str, path: str, body: Any = None, streamed: bool = False, wait_s: float | None = None
    ) -> httpx.Response:
        options: dict[str, Any] = {} if wait_s is None else {"timeout": httpx.Timeout(wait_s, connect=_CONNECT_S)}
        request = self._http.build_request(method, path, json=body, **options)
        try:
            reply = self._http.send(request, stream=streamed)
            if reply.status_code == 200:
                return reply
            data = reply.read()
            reply.close()
        except httpx.HTTPError as error:
            text = f"no answer from the server at {self.url}: {error or type(error).__name__}"
            raise ServerError(text, "llmrun serve, or --server URL") from error
        if reply.status_code == 401:
            raise ServerError(f"the server at {self.url} refused the key", "LLMRUN_API_KEY=KEY llmrun ...")
        raise wire.error_of(wire.read_json(data, reply.status_code), reply.status_code)


def _host(address: Address) -> str:
    # An any-address is reached over loopback (Address.url).
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)  # noqa: S104
