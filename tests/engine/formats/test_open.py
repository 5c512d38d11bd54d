"""open_weights goes by what files hold; names and directories only say where to look."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from strata_engine.errors import CorruptFile, NotFound, UsageError
from strata_engine.formats.open import open_weights
from tests.support.tiny_gguf import write_gguf

ROOT = Path(__file__).parents[3]
ONE = {"t.weight": np.ones((2, 32), np.float32)}


def test_a_gguf_file_opens_under_any_name(tmp_path):
    (path,) = write_gguf(tmp_path / "weights.bin", "llama", {}, ONE)
    assert open_weights(str(path)).kind == "gguf"


def test_a_safetensors_file_opens_under_any_name(tmp_path):
    save_file({"t": torch.ones(2)}, tmp_path / "blob.gguf")
    assert open_weights(tmp_path / "blob.gguf").kind == "safetensors"


def test_several_safetensors_files_open_as_one(tmp_path):
    for name in "ab":
        save_file({name: torch.ones(2)}, tmp_path / f"{name}.safetensors")
    source = open_weights([tmp_path / "a.safetensors", tmp_path / "b.safetensors"])
    assert set(source.tensors()) == {"a", "b"}


def test_a_directory_with_one_gguf_model_opens_it(tmp_path):
    paths = write_gguf(tmp_path / "m.gguf", "llama", {}, ONE | {"u": np.ones(4, np.float32)}, splits=2)
    assert open_weights(tmp_path).paths == tuple(paths)


def test_a_directory_with_several_models_asks_which(tmp_path):
    for name in "ab":
        write_gguf(tmp_path / f"{name}.gguf", "llama", {}, ONE)
    with pytest.raises(UsageError, match=r"a\.gguf, b\.gguf"):
        open_weights(tmp_path)


def test_an_empty_directory_is_not_found(tmp_path):
    with pytest.raises(NotFound):
        open_weights(tmp_path)


def test_a_directory_of_pickles_is_told_why_they_are_not_read(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK\3\4")
    with pytest.raises(NotFound) as caught:
        open_weights(tmp_path)
    assert "safetensors" in caught.value.hint


@pytest.mark.parametrize("name", ["absent.gguf", "zero\0byte"])
def test_an_absent_file_is_not_found(tmp_path, name):
    with pytest.raises(NotFound):
        open_weights(tmp_path / name)


def test_no_file_at_all_is_a_usage_error():
    with pytest.raises(UsageError):
        open_weights([])


def test_files_of_two_kinds_are_not_one_model(tmp_path):
    (path,) = write_gguf(tmp_path / "m.gguf", "llama", {}, ONE)
    save_file({"t": torch.ones(2)}, tmp_path / "m.safetensors")
    with pytest.raises(UsageError, match="different kinds"):
        open_weights([path, tmp_path / "m.safetensors"])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"\xef\xbb\xbf <HTML><body>", "HTML"),
        (b"<?xml version='1.0'?><Error/>", "HTML"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "LFS"),
        (b"PK\x03\x04rest", "ZIP"),
        (b"\x1f\x8b\x08", "gzip"),
        (b"\x28\xb5\x2f\xfdx", "zstd"),
        (b"\0" * 600, "zero bytes"),
        (b'{"error": "not found"}', "JSON"),
        (b"tjgg\3\0\0\0", "GGJT"),
        (b"\0" * 257 + b"ustar" + b"\0" * 250, "tar"),
        (b"hello", "68 65 6c 6c 6f"),
    ],
)
def test_a_file_that_is_no_model_is_named(tmp_path, data, words):
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(CorruptFile, match=words) as caught:
        open_weights(path)
    assert caught.value.hint


def test_importing_the_formats_loads_neither_torch_nor_numpy():
    code = (
        "import sys, strata_engine.formats.open, strata_engine.formats.headers;"
        "import strata_engine.formats.quant.logical;"
        "sys.exit(' '.join(m for m in ('torch', 'numpy', 'gguf', 'safetensors') if m in sys.modules) or None)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (ran.returncode, ran.stderr.strip()) == (0, "")
