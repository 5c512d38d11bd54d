"""Shared flag groups: what a command receives, and what is refused with one clear error."""

from __future__ import annotations

from typing import Annotated

import pytest
import typer

from strata_cli.app import App
from strata_cli.flags import LoadFlags, SamplingFlags, sampling_settings_of, to_engine_config, to_sampling, with_flags
from strata_cli.globals import GlobalFlags
from strata_cli.output import Output
from strata_engine.config import SamplingParams
from strata_engine.env import Env
from strata_engine.errors import NotFound, UsageError


@pytest.fixture
def app(tmp_path):
    env = Env({"LLMRUN_HOME": str(tmp_path)})
    return App(GlobalFlags(), env, env.paths(), Output())


def parsed(*args: str):
    """What a command with both groups receives for these words."""
    received = {}

    @with_flags(LoadFlags, SamplingFlags)
    def ask(
        context: typer.Context,
        model: Annotated[str, typer.Argument()],
        load: LoadFlags,
        sampling: SamplingFlags,
        stats: Annotated[bool, typer.Option("--stats")] = False,
    ) -> None:
        received.update(model=model, load=load, sampling=sampling, stats=stats)

    holder = typer.Typer(add_completion=False, rich_markup_mode=None)
    holder.command("ask")(ask)
    command = typer.main.get_command(holder)
    with command.make_context("ask", list(args)) as context:
        command.invoke(context)
    return received


def test_a_command_gets_its_own_arguments_and_one_object_a_group():
    got = parsed("m", "--stats", "-c", "8k", "--temp", "0.5", "-n", "7")
    assert got["model"] == "m" and got["stats"] is True
    assert got["load"].ctx == "8k"
    assert (got["sampling"].temperature, got["sampling"].max_tokens) == (0.5, 7)


def test_flags_that_were_not_given_are_none():
    got = parsed("m")
    assert got["load"] == LoadFlags() and got["sampling"] == SamplingFlags()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--temp", "-1"], "--temp: -1.0 is outside 0 to 100"),
        (["--temp", "nan"], "--temp: nan is outside"),
        (["--top-p", "1.5"], "--top-p: 1.5 is outside 0 to 1"),
        (["--top-k", "-1"], "--top-k: -1 is outside"),
        (["--threads", "9999"], "--threads: 9999 is outside 0 to 1024"),
        (["--parallel", "0"], "--parallel: 0 is outside 1 to 1024"),
        (["-b", "0"], "--batch: 0 is outside"),
        (["--ctx", "abc"], "--ctx: 'abc' is not a number of tokens"),
        (["--kv-type", "q8"], "--kv-type: 'q8' is not one of f16, bf16, f32, int8"),
        (["--kernels", "fast"], "--kernels: 'fast' is not one of auto, native, reference"),
        (["-n", "0"], "--max-tokens 0"),
        (["--logprobs", "21"], "--logprobs: 21 is outside 0 to 20"),
        (["--logit-bias", "x=1"], "--logit-bias x=1: not ID=X"),
        (["--logit-bias", "5=1..2"], "--logit-bias 5=1..2: not ID=X"),
        (["--logit-bias", "5=200"], "--logit-bias 5=200: 200 is outside"),
        (["--stop", "a\\q"], "unknown escape \\q"),
        (["--stop", "\\ud800"], "unknown escape"),
    ],
)
def test_a_value_out_of_range_is_one_usage_error(args, said):
    with pytest.raises(UsageError) as caught:
        parsed("m", *args)
    assert said in caught.value.message


def test_escapes_in_stop_texts_become_characters(app):
    flags = SamplingFlags(stop=["\\n\\n", "\\x41", "\\u00e9", "a\\\\b", ""])
    assert to_sampling(app, flags).stop == ("\n\n", "A", "é", "a\\b")


def test_stop_texts_of_the_model_stay_in_force(app):
    model = SamplingParams(stop=("<end>",))
    assert to_sampling(app, SamplingFlags(stop=["X", "<end>"]), model).stop == ("<end>", "X")


def test_logit_bias_takes_both_spellings(app):
    flags = SamplingFlags(logit_bias=["12=-3.5", "7+2", "8-1"])
    assert to_sampling(app, flags).logit_bias == ((12, -3.5), (7, 2.0), (8, -1.0))


def test_seed_and_length_of_minus_one_mean_none(app):
    params = to_sampling(app, SamplingFlags(seed=-1, max_tokens=-1))
    assert params.seed is None and params.max_tokens is None


def test_a_flag_wins_over_the_model_and_says_so(app):
    model = SamplingParams(temperature=0.2, top_p=0.9)
    flags = SamplingFlags(temperature=1.0)
    assert to_sampling(app, flags, model).temperature == 1.0
    settings = sampling_settings_of(app, flags, model)
    assert (settings.origin("temperature"), settings.origin("top_p"), settings.origin("min_p")) == (
        "flag",
        "model",
        "built-in",
    )


def test_load_flags_become_an_engine_config(app):
    config = to_engine_config(app, LoadFlags(ctx="4k", threads=2, parallel=3, batch=64, kv_type="f32", mmap=False))
    assert (config.context_tokens, config.threads, config.max_sequences, config.batch_rows) == (4096, 2, 3, 64)
    assert (config.kv_type, config.mmap) == ("f32", False)


def test_a_chat_template_is_read_from_its_file(app, tmp_path):
    file = tmp_path / "t.jinja"
    file.write_text("{{ messages }}", encoding="utf-8")
    assert to_engine_config(app, LoadFlags(chat_template=str(file))).chat_template == "{{ messages }}"


def test_a_chat_template_that_is_missing_or_not_text_is_refused(app, tmp_path):
    with pytest.raises(NotFound):
        to_engine_config(app, LoadFlags(chat_template=str(tmp_path / "none")))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not UTF-8"):
        to_engine_config(app, LoadFlags(chat_template=str(tmp_path / "binary")))


def test_a_group_without_a_parameter_is_a_programming_error():
    with pytest.raises(TypeError, match="LoadFlags"):

        @with_flags(LoadFlags)
        def ask(context: typer.Context) -> None: ...
