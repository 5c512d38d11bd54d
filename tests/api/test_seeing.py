"""A tiny model that sees: through the engine, over HTTP and from the command line, against transformers."""

from __future__ import annotations

import base64
import io
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from strata_cli.main import main
from strata_cli.server.names import Served
from strata_engine.chat import ChatRequest, Message, Part
from strata_engine.config import NO_PROJECTOR, EngineConfig
from strata_engine.core.batch import Span
from strata_engine.core.pictures import Picture, Pictures
from strata_engine.errors import ContextExceeded, CorruptFile, RequestRefused
from strata_engine.models.load import load_model
from strata_engine.models.vision.config import PixelRules
from strata_engine.models.vision.patches import see_image
from strata_engine.paths import Paths
from strata_engine.placement.estimate import estimate
from strata_engine.registry.catalog import load_catalog
from strata_engine.registry.local import local_model
from strata_engine.registry.store import Store
from strata_engine.runtime import sight
from strata_engine.runtime.engine import Engine
from strata_engine.runtime.opening import open_files
from strata_engine.runtime.service import LocalService
from strata_kernels.reference.ops import ReferenceOps
from tests.support.engines import GREEDY, ReferenceBackend, finish_of, ids_of
from tests.support.images import file_of, picture
from tests.support.live_server import live_server
from tests.support.tiny_vision import PIXELS, oracle, seeing_tokenizer, tiny_vl, write_vl_gguf

CHAT, ROWS, PAD_ID = "/v1/chat/completions", 320, 318
RULES = PixelRules(patch=4, merge=2, frames=2, least=PIXELS[0], most=PIXELS[1])
CAT, DOG = file_of(picture(30, 21)), file_of(picture(17, 40, seed=1))
MORE = 6  # tokens to answer with


@pytest.fixture(scope="module")
def model():
    return tiny_vl(vocab_size=ROWS)


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory) -> Path:
    base = tmp_path_factory.mktemp("seeing")
    write_vl_gguf(model, base, tokenizer=seeing_tokenizer(ROWS))
    return base


@pytest.fixture(scope="module")
def service(folder, tmp_path_factory):
    base = tmp_path_factory.mktemp("home")
    paths = Paths(*(base / name for name in ("config", "data", "models", "state", "cache")))
    # few rows and pages: prompts are cut across images, and sequences push each other out
    config = EngineConfig(kv_type="f32", max_sequences=4, batch_rows=7, page_tokens=8, context_tokens=128)
    with LocalService(load_catalog(), Store(paths), config, lambda device: ReferenceBackend()) as opened:
        opened.load(str(folder))
        yield opened


def asked(*images: bytes) -> ChatRequest:
    parts = (*(Part("image", data=data) for data in images), Part("text", "what is this?"))
    return ChatRequest((Message("user", parts),))


def prompt_of(service, request: ChatRequest) -> tuple[list[int], Pictures]:
    """Ids with the images' tokens, made here anew."""
    chat = service.text(service.loaded()[0].name).chat
    ids: list[int] = []
    seen: list[Picture] = []
    parts = iter([p for m in request.messages for p in m.parts if p.kind == "image"])
    for token in chat.render(request).ids:
        if token != PAD_ID:
            ids.append(token)
            continue
        image = see_image(next(parts).data, RULES)
        seen.append(Picture(len(ids), image.height, image.width, image.key, image.patches))
        ids += [PAD_ID] * (image.height * image.width)
    return ids, Pictures(len(ids), seen)


def wanted(model, service, request: ChatRequest) -> list[int]:
    """The most probable tokens by transformers, one after the other."""
    ids, pictures = prompt_of(service, request)
    prompt = len(ids)
    for _ in range(MORE):
        ids.append(int(oracle(model, ids, pictures, prompt, PAD_ID)[-1].argmax()))
    return ids[prompt:]


def answer(service, request: ChatRequest) -> list[int]:
    return ids_of(list(service.stream(service.loaded()[0].name, request, replace(GREEDY, max_tokens=MORE))))


@pytest.mark.parametrize("images", [(CAT,), (DOG, CAT)], ids=["one image", "two images"])
def test_the_engine_answers_as_transformers_does(model, service, images):
    request = asked(*images)
    assert answer(service, request) == wanted(model, service, request)


def test_an_image_in_history_is_seen_again(model, service):
    history = (*asked(CAT).messages, Message.of("assistant", "a cat"), *asked(DOG).messages)
    assert answer(service, ChatRequest(history)) == wanted(model, service, ChatRequest(history))


def test_an_image_seen_before_is_not_read_again_and_another_one_is(model, service):
    name, other = service.loaded()[0].name, file_of(picture(30, 21, seed=9))  # of the same size, so the same ids
    known = []
    for data in (CAT, CAT, other):
        events = list(service.stream(name, asked(data), replace(GREEDY, max_tokens=MORE)))
        assert ids_of(events) == wanted(model, service, asked(data))
        known.append(finish_of(events).usage.cached_tokens)
    assert known[1] > known[2] and known[1] >= 16


def test_sequences_with_images_run_side_by_side(model, service):
    name, requests = service.loaded()[0].name, [asked(CAT), asked(DOG), asked(CAT, DOG), asked(DOG, DOG)]
    alone = [answer(service, request) for request in requests]
    streams = [service.stream(name, request, replace(GREEDY, max_tokens=MORE)) for request in requests]
    assert [ids_of(list(stream)) for stream in streams] == alone


def test_what_cannot_be_shown_is_refused_and_the_engine_goes_on(service):
    for data, says in ((b"no image", "cannot be read"), (file_of(picture(1, 201)), "too long and thin")):
        with pytest.raises(RequestRefused, match=says):
            answer(service, asked(data))
    assert len(answer(service, asked(CAT))) == MORE


def link(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def test_images_that_the_context_cannot_hold_are_refused_by_their_size(service, monkeypatch):
    monkeypatch.setattr(sight, "see_image", lambda *given: pytest.fail("patches were made"))
    with pytest.raises(ContextExceeded, match=r"\d+ tokens, 128 of them of 8 images; the context holds 128") as caught:
        answer(service, asked(*[file_of(picture(64, 64))] * 8))
    assert caught.value.details["n_image_tokens"] == 128


def test_sequences_with_images_push_each_other_out_and_come_back(folder):
    """Whoever must go starts anew and sees its images again; one that is given up takes nothing with it."""
    requests = [asked(CAT), asked(DOG), asked(CAT, DOG)]
    config = EngineConfig(kv_type="f32", max_sequences=3, batch_rows=7, page_tokens=8, context_tokens=128)
    params = replace(GREEDY, max_tokens=40)
    with Engine.open(local_model(str(folder)), config, ReferenceBackend()) as roomy:
        alone = [ids_of(list(roomy.submit(request, params))) for request in requests]
        priced = roomy.parts.priced
    one_context = priced.total_bytes - priced.kv_bytes + 128 * priced.kv_token_bytes
    with Engine.open(local_model(str(folder)), config, ReferenceBackend(free_bytes=one_context)) as engine:
        gate, executor, ran = threading.Event(), engine.parts.executor, engine.parts.executor.run

        def run(spans: Sequence[Span]):
            gate.wait(60)  # no step before all are in the line: how they meet must not depend on the machine's speed
            return ran(spans)

        executor.run = run
        streams = [engine.submit(request, params) for request in (*requests, asked(DOG, DOG))]
        streams[-1].close()
        gate.set()
        assert [ids_of(list(stream)) for stream in streams[:-1]] == alone
        assert engine.report().speed["preemptions"] > 0
        list(streams[-1])
        engine.check()


def test_while_others_decode_images_are_made_one_a_step(folder):
    config = EngineConfig(kv_type="f32", max_sequences=2, batch_rows=64, page_tokens=8, context_tokens=128)
    many = asked(*(file_of(picture(16, 16 + 8 * n)) for n in range(4)))
    with Engine.open(local_model(str(folder)), config, ReferenceBackend()) as engine:
        alone = ids_of(list(engine.submit(many, replace(GREEDY, max_tokens=MORE))))
    with Engine.open(local_model(str(folder)), config, ReferenceBackend()) as engine:
        log: list[str] = []
        decoding, submitted = threading.Event(), threading.Event()
        executor, tower = engine.parts.executor, engine.parts.loaded.tower
        ran, made = executor.run, tower.features

        def run(spans: Sequence[Span]):
            log.append("step")
            if len(log) > 3:  # the first sequence has its image behind it
                decoding.set()
                submitted.wait(60)
            return ran(spans)

        def features(*given):
            log.append("image")
            return made(*given)

        executor.run, tower.features = run, features
        first = engine.submit(asked(CAT), replace(GREEDY, max_tokens=40))
        assert decoding.wait(60)
        second = engine.submit(many, replace(GREEDY, max_tokens=MORE))
        begun = len(log)
        submitted.set()
        assert ids_of(list(second)) == alone
        assert len(ids_of(list(first))) == 40
        assert log[begun:].count("image") == 4
        assert all("step" in pair for pair in zip(log, log[1:], strict=False))


def test_the_estimate_counts_projector_and_tower(model, folder):
    files = local_model(str(folder / "model.gguf"))
    assert [file.name for file in files.role("mmproj")] == ["mmproj-model.gguf"]
    config = EngineConfig(max_sequences=4, batch_rows=7)
    whole, alone = (open_files(files, projector) for projector in (None, NO_PROJECTOR))
    seeing, blind = (estimate(source, config, 8 << 30) for source in (whole, alone))
    loaded = load_model(whole, ReferenceOps())
    assert seeing.weights_bytes == loaded.packed_bytes + loaded.mapped_bytes
    tower = sum(meta.nbytes for name, meta in whole.tensors().items() if name.startswith(("v.", "mm.")))
    assert seeing.weights_bytes - blind.weights_bytes == tower > 0
    few, many = (estimate(whole, replace(config, context_tokens=n), 8 << 30).workspace_bytes for n in (2, 100))
    # 16 tokens are the most that an image of this model takes, whatever the context
    assert blind.workspace_bytes < few < many == seeing.workspace_bytes
    assert (many - blind.workspace_bytes) == 8 * (few - blind.workspace_bytes)


def test_a_model_goes_blind_on_demand_and_sees_through_another_file(folder, tmp_path):
    config = EngineConfig(kv_type="f32", context_tokens=128)
    alone = tmp_path / "m.gguf"
    alone.symlink_to(folder / "model.gguf")
    for path, projector, sees in (
        (folder / "model.gguf", None, True),
        (folder / "model.gguf", NO_PROJECTOR, False),
        (alone, None, False),
        (alone, str(folder / "mmproj-model.gguf"), True),
    ):
        with Engine.open(local_model(str(path)), replace(config, projector=projector), ReferenceBackend()) as engine:
            assert (engine.parts.eye is not None) == sees
            named = [choice.taken for choice in engine.parts.choices if choice.what == "image projector"]
            assert named == ["mmproj-model.gguf"] * sees
    with pytest.raises(CorruptFile, match="not an image projector"):
        Engine.open(local_model(str(alone)), replace(config, projector=str(alone)), ReferenceBackend())


def test_http_clients_show_images(service):
    loaded = service.loaded()[0]
    with live_server(service, served=[Served(loaded.reference, (loaded.name,))]) as live:
        content = [{"type": "image_url", "image_url": {"url": link(CAT)}}, {"type": "text", "text": "what is this?"}]
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": MORE, "temperature": 0,
                "ignore_eos": True, "return_token_ids": True}  # fmt: skip
        reply = live.http.post(CHAT, json=body).json()
        assert reply["choices"][0]["token_ids"] == answer(service, asked(CAT))
        assert "vision" in live.http.get("/v1/models").json()["data"][0]["capabilities"]
        content[0]["image_url"]["url"] = "http://127.0.0.1/cat.png"
        refused = live.http.post(CHAT, json=body)
        assert refused.status_code == 400
        assert "--allow-image-urls" in refused.text
        content[0]["image_url"]["url"] = link(b"no image")
        assert live.http.post(CHAT, json=body).status_code == 400


def test_the_command_line_shows_images(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LLMRUN_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    (tmp_path / "cat.png").write_bytes(CAT)

    def run(image: str, *more: str) -> tuple[int, str, str]:
        args = ["run", str(folder), "what is this?", "--image", image, "-n", "4", "--temp", "0", "--ctx", "128"]
        code = main([*args, "--kernels", "reference", "--json", *more])
        return code, *capsys.readouterr()

    code, out, err = run(str(tmp_path / "cat.png"))
    assert (code, "completion_tokens" in out) == (0, True), err
    code, _, err = run(str(tmp_path / "none.png"))
    assert code == 3
    assert "no such image" in err
    code, _, err = run(str(tmp_path / "cat.png"), "--mmproj", "none")
    assert code == 11
    assert "cannot see images" in err
    code, _, err = run(str(tmp_path / "cat.png"), "--mmproj", str(tmp_path / "gone.gguf"))
    assert code == 3
    assert "--mmproj: no such file" in err
