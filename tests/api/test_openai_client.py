"""The official Python client against the server."""

from __future__ import annotations

import asyncio

import openai
import pytest

from strata_cli.server.options import ServerOptions
from tests.support.fake_service import FakeService, endless
from tests.support.live_server import live_server

SAY = [{"role": "user", "content": "Say: hello you"}]


@pytest.fixture(scope="module")
def service():
    made = FakeService()
    yield made
    made.close()


@pytest.fixture(scope="module")
def live(service):
    with live_server(service, ServerOptions(keys=("k",))) as found:
        yield found


@pytest.fixture(scope="module")
def client(live):
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="k", max_retries=0) as made:
        yield made


def test_models(client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("no-such")


def test_chat(client):
    reply = client.chat.completions.create(model="tiny", messages=SAY, logprobs=True, top_logprobs=1, n=2, seed=1)
    assert [choice.message.content for choice in reply.choices] == ["hello you", "hello you"]
    assert reply.choices[0].logprobs.content[0].token == "h"
    assert reply.usage.completion_tokens == 20


def test_chat_stream(client):
    stream = client.chat.completions.create(
        model="tiny", messages=SAY, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "hello you"
    assert chunks[-1].usage.completion_tokens == 10


def test_chat_stream_helper(client):
    with client.chat.completions.stream(model="tiny", messages=SAY) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "hello you"


def test_completions_with_token_ids_and_logprobs(client):
    reply = client.completions.create(model="tiny", prompt=[72, 58, 32], logprobs=2, max_tokens=3)
    assert reply.choices[0].text == "tok"
    assert reply.choices[0].logprobs.tokens == ["t", "o", "k"]
    assert reply.choices[0].logprobs.top_logprobs[0] == {"t": -0.5, "u": -1.5}
    assert reply.choices[0].finish_reason == "length"
    pieces = client.completions.create(model="tiny", prompt=["Say: a", "Say: b"], stream=True)
    found = {0: "", 1: ""}
    for piece in pieces:
        found[piece.choices[0].index] += piece.choices[0].text
    assert found == {0: "a", 1: "b"}


def test_errors_are_the_clients_own_classes(client, live):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=SAY, temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="no-such", messages=SAY)
    with (
        openai.OpenAI(base_url=f"{live.url}/v1", api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()


def test_cancel_frees_the_sequence(client, service):
    service.script, before = endless, service.script
    stream = client.chat.completions.create(model="tiny", messages=SAY, stream=True)
    next(stream)
    stream.close()
    service.wait_until(lambda s: s.idle)
    service.script = before


def test_sixteen_at_once(live):
    async def ask(client: openai.AsyncOpenAI, number: int) -> str:
        messages = [{"role": "user", "content": f"Say: {number}"}]
        stream = await client.chat.completions.create(model="tiny", messages=messages, stream=True)
        return "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])

    async def everyone() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="k", max_retries=0) as client:
            return list(await asyncio.gather(*(ask(client, number) for number in range(16))))

    assert asyncio.run(everyone()) == [str(number) for number in range(16)]
