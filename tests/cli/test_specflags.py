"""Flags and settings of speculation: what an engine gets, what is refused, and what is said about drafters."""

from __future__ import annotations

import pytest

from strata_cli.app import App
from strata_cli.flags import LoadFlags, to_engine_config
from strata_cli.globals import GlobalFlags
from strata_cli.output import Output
from strata_cli.specflags import SpecBenchFlags, SpecFlags
from strata_cli.speculation import drafter_lines
from strata_engine.config import SpecConfig
from strata_engine.env import Env
from strata_engine.errors import UsageError


def app(home, **variables) -> App:
    env = Env({"LLMRUN_HOME": str(home), **variables})
    return App(GlobalFlags(), env, env.paths(), Output())


def test_without_flags_nothing_speculates(tmp_path):
    assert to_engine_config(app(tmp_path), LoadFlags(), SpecFlags()).spec == SpecConfig()


def test_every_flag_arrives_in_the_engine(tmp_path):
    flags = SpecFlags("dflash", "./d", 5, 0.25, True, True, "off")
    found = to_engine_config(app(tmp_path), LoadFlags(), flags).spec
    assert found == SpecConfig("dflash", "./d", 5, 0.25, strict=True, verify=True, adaptive=False)


def test_variables_and_the_config_file_count_too_and_flags_win(tmp_path):
    (tmp_path / "config").mkdir()
    (tmp_path / "config/config.toml").write_text('spec = "mtp"\nspec_n_max = 2\n', encoding="utf-8")
    mine = app(tmp_path, LLMRUN_SPEC="ngram", LLMRUN_SPEC_ADAPTIVE="off")
    found = to_engine_config(mine, LoadFlags()).spec
    assert (found.method, found.n_max, found.adaptive) == ("ngram", 2, False)
    given = to_engine_config(mine, LoadFlags(), SpecFlags(spec="suffix", spec_n_max=0, spec_adaptive="on")).spec
    assert (given.method, given.n_max, given.adaptive) == ("suffix", None, True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"spec": "magic"}, "--spec: 'magic' is not one of none, auto"),
        ({"spec_n_max": -1}, "--spec-n-max: -1 is outside 0 to 64"),
        ({"spec_p_min": 1.5}, "--spec-p-min: 1.5 is outside 0 to 1"),
        ({"spec_adaptive": "perhaps"}, "--spec-adaptive: 'perhaps' is not true or false"),
    ],
)
def test_wrong_values_are_refused_with_the_flag(given, said):
    with pytest.raises(UsageError) as caught:
        SpecFlags(**given)
    assert caught.value.message.startswith(said)


def test_the_bench_takes_methods_as_a_list():
    assert SpecBenchFlags(spec="none,mtp,none,dflash").methods == ("none", "mtp", "dflash")
    assert [SpecBenchFlags(spec=s).wanted for s in (None, "none", "none,mtp")] == [False, False, True]
    assert SpecBenchFlags(suite="sums").wanted
    with pytest.raises(UsageError, match="'magic' is not one of"):
        SpecBenchFlags(spec="none,magic")
    with pytest.raises(UsageError, match="--suite"):
        SpecBenchFlags(questions=3)


def test_a_loaded_drafter_is_told_in_one_line():
    facts = {"packed_bytes": 1_780_992, "block": 8, "taps": [0, 2], "most": 7, "buffers": 5}
    found = {"n_max": 3, "vocabulary": 1024, "hidden_size": 256, "drafters": {"dflash": facts, "ngram": {"most": 16}}}
    assert drafter_lines(found) == [
        "drafter dflash: 1.78 MB, block 8, taps 0 2, fits vocabulary 1024 and hidden size 256, up to 3 drafts a step",
        "drafter ngram: no weights, up to 3 drafts a step",
    ]
    assert drafter_lines({}) == []
