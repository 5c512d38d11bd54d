"""Whose sampling defaults win."""

from __future__ import annotations

import pytest

from strata_engine.config import SamplingParams
from strata_engine.runtime.defaults import default_context, merge_defaults


def test_without_any_the_program_decides():
    assert merge_defaults({}) == SamplingParams()


def test_generation_config_replaces_the_program():
    merged = merge_defaults({"generation_config": {"temperature": 0.6, "top_k": 20, "repetition_penalty": 1.1}})
    assert (merged.temperature, merged.top_k, merged.repeat_penalty) == (0.6, 20, 1.1)
    assert merged.top_p == SamplingParams().top_p


def test_sampling_keys_of_a_gguf_file_are_read():
    merged = merge_defaults({"general.sampling.temp": 0.3, "general.sampling.top_p": 0.8})
    assert (merged.temperature, merged.top_p) == (0.3, 0.8)


def test_the_catalog_replaces_the_checkpoint_and_a_later_one_the_earlier():
    metadata = {"generation_config": {"temperature": 0.6, "top_k": 20}}
    merged = merge_defaults(metadata, {"temperature": 0.2, "stop": "END"}, {"temperature": 0.1})
    assert (merged.temperature, merged.top_k, merged.stop) == (0.1, 20, ("END",))


@pytest.mark.parametrize("value", ["0.5", None, True, [0.5]])
def test_values_of_another_type_are_left_out(value):
    assert merge_defaults({"generation_config": {"temperature": value}}).temperature == SamplingParams().temperature


def test_the_last_catalog_names_the_context():
    assert default_context({"ctx": 2048}, {"ctx": 4096}) == 4096
    assert default_context({"ctx": 0}, {"ctx": "x"}) is None
