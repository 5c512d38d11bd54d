"""The check of the native library: missing, damaged, and computing wrongly."""

from __future__ import annotations

import pytest
import torch

from strata_engine.doctor import kernels


def test_a_missing_library_is_a_warning_with_a_remedy(monkeypatch, tmp_path):
    monkeypatch.setattr(kernels, "library_path", lambda: tmp_path / "none.so")
    [check] = kernels.check_all()
    assert (check.status, check.device) == ("warn", True)
    assert "compiler" in check.remedy


def test_a_damaged_library_is_a_failure_of_the_device(monkeypatch, tmp_path):
    (tmp_path / "broken.so").write_bytes(b"not a library")
    monkeypatch.setattr(kernels, "library_path", lambda: tmp_path / "broken.so")
    [check] = kernels.check_all()
    assert (check.status, check.device) == ("fail", True)
    assert "does not load" in check.text


@pytest.fixture
def built() -> None:
    if kernels.state().build == "":
        pytest.skip("the native library is not built here")


def test_the_library_here_computes_what_torch_computes(built):
    checks = kernels.check_all()
    assert [(c.name, c.status) for c in checks] == [("kernels", "ok"), ("self-test", "ok")]


@pytest.mark.parametrize("wrong", [0.5, float("nan")])
def test_wrong_results_are_a_failure_of_the_device(monkeypatch, wrong):
    monkeypatch.setattr(kernels, "_error", lambda kind: wrong)
    check = kernels.self_test()
    assert (check.status, check.device) == ("fail", True)


def test_kernels_that_do_not_run_are_a_failure_with_their_words(monkeypatch):
    def refuse(kind: str) -> float:
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(kernels, "_error", refuse)
    assert "no such instruction" in kernels.self_test().text


def test_stored_q8_0_values_come_back_within_half_a_step():
    values = torch.randn(4, 64, generator=torch.Generator().manual_seed(1))
    stored = kernels._stored("Q8_0", values).reshape(4, 2, 34)
    scale = stored[..., :2].contiguous().view(torch.float16).float()
    codes = stored[..., 2:].contiguous().view(torch.int8).float()
    assert ((scale * codes).reshape(4, 64) - values).abs().max() <= scale.max()
