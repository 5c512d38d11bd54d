"""The default model behind `llmrun serve`, asked by the official client: acceptance 4 of the first answer."""

from __future__ import annotations

import asyncio
import time

import httpx
import openai
import pytest

from tests.support.process import server_process
from tests.support.smollm import smollm_path

pytestmark = [pytest.mark.network, pytest.mark.slow]
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    arguments = ["-m", "strata_cli", "serve", str(smollm_path()), "--alias", "smollm2", "--port", "0", "--ctx", "2048"]
    with server_process(home, arguments) as (process, found):
        yield found
        process.terminate()
        assert process.wait(20) == 143


@pytest.fixture(scope="module")
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_it_knows_paris_streamed_or_not(client):
    plain = client.chat.completions.create(model="smollm2", messages=FRANCE, temperature=0, max_tokens=40)
    stream = client.chat.completions.create(model="smollm2", messages=FRANCE, temperature=0, max_tokens=40, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert text == plain.choices[0].message.content
    assert "Paris" in text


def test_text_and_its_token_ids_give_the_same_completion_with_logprobs(client, url):
    text = "The first three prime numbers are"
    ids = httpx.post(f"{url}/tokenize", json={"content": text}, trust_env=False).json()["tokens"]
    options = {"model": "smollm2", "temperature": 0, "max_tokens": 8, "logprobs": 3}
    first, second = (client.completions.create(prompt=prompt, **options).choices[0] for prompt in (text, ids))
    assert first.text == second.text
    assert first.logprobs.token_logprobs == second.logprobs.token_logprobs
    assert "".join(first.logprobs.tokens) == first.text
    assert all(len(top) == 3 and max(top.values()) <= 0 for top in first.logprobs.top_logprobs)


def test_sixteen_clients_at_once_get_what_each_would_get_alone(client, url):
    async def ask(client: openai.AsyncOpenAI, number: int) -> str:
        reply = await client.chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": f"Count from {number}."}],
            temperature=0,
            max_tokens=16,
        )
        return reply.choices[0].message.content or ""

    async def everyone() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            return list(await asyncio.gather(*(ask(client, number) for number in range(16))))

    together = asyncio.run(everyone())
    for number in (0, 7, 15):
        messages = [{"role": "user", "content": f"Count from {number}."}]
        alone = client.chat.completions.create(model="smollm2", messages=messages, temperature=0, max_tokens=16)
        assert alone.choices[0].message.content == together[number]


def test_hanging_up_in_a_long_prompt_or_answer_frees_the_slot(client, url):
    with httpx.Client(base_url=url, trust_env=False) as http:
        for text in ("hi", "word " * 1500):
            body = {"messages": [{"role": "user", "content": text}], "ignore_eos": True, "stream": True}
            with http.stream("POST", "/v1/chat/completions", json=body) as reply:
                assert reply.status_code == 200
            deadline = time.monotonic() + 20
            while any(slot["is_processing"] for slot in http.get("/slots").json()):
                assert time.monotonic() < deadline
        lines = http.get("/metrics").text.splitlines()
    cancelled = sum(float(x.split()[-1]) for x in lines if x.startswith("llmrun:requests_cancelled_total"))
    assert cancelled == 2
