"""llmrun kernels: build with a compiler that is told what to make, list, verify, clean, export and import."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strata_cli.commands import kernels as command
from strata_engine.paths import Paths
from strata_kernels.gpu import compile as building
from strata_kernels.gpu.bundle import Store
from strata_kernels.gpu.launch import Variant
from tests.support.command import call, values
from tests.support.gpu_kernels import entry_for
from tests.support.program import environment, imports

ADD = Variant("add", ("*fp32", "*fp32", "*fp32", "i32"), (("BLOCK", 256),))
NORM = Variant("rms_norm", ("*fp32", "*fp32", "*fp32", "fp32"), (("BLOCK", 64), ("WIDTH", 64)))


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A home of its own on a machine without GPUs; every model needs two kernels."""
    monkeypatch.setattr(command, "gpus", lambda place: [])
    monkeypatch.setattr(command, "_variants", lambda app, model, given: [ADD, NORM])
    return values(tmp_path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "llmrun" / "cache" / "kernels"


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiles nothing, answers at once."""

    def build(builders, missing, jobs):
        outcomes = []
        for variant, why in missing:
            entry = entry_for(variant, builders._store.arch)
            builders._store.put(entry)
            outcomes.append(building.Outcome(variant, builders._store.arch, "built", 0.5, entry, why=why))
            builders._report.tell(outcomes[-1])
        return outcomes

    monkeypatch.setattr(building._Builders, "build", build)


@pytest.fixture
def built(env: dict[str, str], compiler: None) -> None:
    assert call(["kernels", "build", "--arch", "all", "--model", "any"], env).code == 0


def test_build_makes_what_is_missing_for_each_device(env, root: Path, compiler):
    done = call(["kernels", "build", "--arch", "gfx1100,sm_90", "--model", "any"], env)
    assert done.code == 0
    assert done.out.splitlines() == [
        "gfx1100: 2 kernels, 2 built, 0 were there, 1.0 s of compiling",
        "sm_90: 2 kernels, 2 built, 0 were there, 1.0 s of compiling",
    ]
    assert len(list((root / "gfx1100").iterdir())) == 2
    again = call(["kernels", "build", "--arch", "all", "--model", "any", "--json"], env)
    states = [(one["arch"], one["state"]) for one in json.loads(again.out)["kernels"]]
    assert states == [("gfx1100", "present")] * 2 + [("gfx1201", "built")] * 2 + [("sm_90", "present")] * 2


def test_build_tells_each_kernel_as_a_json_line(env, compiler):
    done = call(["kernels", "build", "--arch", "sm_90", "--model", "any", "--jsonl"], env)
    events = [json.loads(line) for line in done.out.splitlines()]
    assert [(one.get("done"), one["schema"]) for one in events] == [
        (1, "llmrun.kernels_event.v1"), (2, "llmrun.kernels_event.v1"), (None, "llmrun.kernels.build.v1")]  # fmt: skip


def test_build_without_a_gpu_or_with_an_unknown_one_says_what_there_is(env):
    done = call(["kernels", "build", "--model", "any"], env)
    assert done.code == 8 and "no GPU" in done.err and "gfx1100|gfx1201|sm_90|m1000|all" in done.err
    done = call(["kernels", "build", "--arch", "gfx906", "--model", "any"], env)
    assert done.code == 2 and "gfx906" in done.err and "m1000" in done.err


def test_build_for_m1000_says_where_it_is_compiled(env):
    done = call(["kernels", "build", "--arch", "m1000", "--model", "any"], env)
    assert done.code == 8 and "on the device" in done.err and "Traceback" not in done.err


def test_build_without_the_compiler_says_what_to_install(env, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(building, "find_spec", lambda name: None)
    done = call(["kernels", "build", "--arch", "sm_90", "--model", "any"], env)
    assert done.code == 8 and "strata-llmrun[gpu]" in done.err


def test_a_kernel_that_does_not_compile_ends_with_8(env, monkeypatch: pytest.MonkeyPatch):
    failed = building.Outcome(ADD, "sm_90", "failed", error="ptxas: no")
    monkeypatch.setattr(building._Builders, "build", lambda *_: [failed])
    done = call(["kernels", "build", "--arch", "sm_90", "--model", "any", "--json"], env)
    assert done.code == 8
    told = json.loads(done.out)["error"]
    assert ADD.key in told["message"] and told["details"]["kernels"][0]["error"] == "ptxas: no"


def test_list_shows_what_is_there(env, root: Path, built):
    lines = call(["kernels", "list"], env).out.splitlines()
    assert lines[0].split() == ["ARCH", "KERNEL", "SIZE", "REGISTERS", "STATE"]
    assert len(lines) == 7 and lines[1].split()[0] == "gfx1100" and lines[1].endswith("ready")
    Store(root, "gfx1201").put(entry_for(ADD, "gfx1201", source="0" * 64))
    rows = json.loads(call(["kernels", "list", "--arch", "gfx1201", "--json"], env).out)["kernels"]
    assert sorted(row["state"] for row in rows) == ["old", "ready", "ready"]


def test_verify_passes_what_is_whole(env, built):
    done = call(["kernels", "verify", "--arch", "all", "--model", "any"], env)
    assert done.code == 0
    assert done.out.splitlines() == [f"{a}: 2 kernels checked, no damage" for a in ("gfx1100", "gfx1201", "sm_90")]


def test_verify_names_a_changed_byte(env, root: Path, built):
    path = Store(root, "gfx1201").path(ADD)
    data = bytearray(path.read_bytes())
    data[-40] ^= 1
    path.write_bytes(data)
    done = call(["kernels", "verify"], env)
    assert done.code == 6 and path.name in done.err and "build" in done.err


def test_verify_names_what_a_model_lacks(env, root: Path, built):
    Store(root, "sm_90").path(NORM).unlink()
    assert call(["kernels", "verify", "--arch", "all"], env).code == 0
    done = call(["kernels", "verify", "--arch", "all", "--model", "any", "--json"], env)
    assert done.code == 10
    missing = json.loads(done.out)["error"]["details"]["missing"]
    assert missing == [{"arch": "sm_90", "kernel": NORM.key}]


def test_verify_of_nothing_is_not_fine(env):
    done = call(["kernels", "verify"], env)
    assert done.code == 3 and "kernels build" in done.err


def test_clean_removes_old_and_damaged_ones_only(env, root: Path, built):
    store = Store(root, "gfx1100")
    old = store.put(entry_for(ADD, "gfx1100", source="0" * 64))
    store.path(NORM).write_bytes(b"rubbish")
    dry = call(["kernels", "clean", "--dry-run"], env)
    assert "2 of 7 kernels would be removed" in dry.out and old.is_file()
    assert "2 of 7 kernels removed" in call(["kernels", "clean"], env).out
    assert not old.is_file() and store.path(ADD).is_file()
    assert "5 of 5 kernels removed" in call(["kernels", "clean", "--all"], env).out


def test_export_and_import_carry_kernels(env, root: Path, built, tmp_path: Path):
    archive = tmp_path / "kernels.tar"
    assert "gfx1100: 2 kernels into" in call(["kernels", "export", str(archive), "--arch", "gfx1100"], env).out
    other = tmp_path / "other"
    done = call(["kernels", "import", str(archive), "--cache-dir", str(other)], env)
    assert done.code == 0 and "gfx1100: 2 kernels from" in done.out
    assert Store(other, "gfx1100").load(ADD) == Store(root, "gfx1100").load(ADD)


def test_import_refuses_what_is_damaged_or_no_archive(env, built, tmp_path: Path):
    archive, other = tmp_path / "kernels.tar", tmp_path / "other"
    call(["kernels", "export", str(archive), "--arch", "gfx1100"], env)
    data = bytearray(archive.read_bytes())
    data[700] ^= 1
    archive.write_bytes(data)
    done = call(["kernels", "import", str(archive), "--cache-dir", str(other)], env)
    assert done.code == 6 and not other.exists()
    archive.write_bytes(b"no tar at all" * 100)
    assert call(["kernels", "import", str(archive)], env).code == 6
    assert call(["kernels", "import", str(tmp_path / "none.tar")], env).code == 3


def test_import_takes_no_other_files(env, tmp_path: Path):
    import io
    import tarfile

    archive = tmp_path / "evil.tar"
    data = entry_for(ADD, "gfx1100").to_bytes()
    with tarfile.open(archive, "w") as file:
        member = tarfile.TarInfo(f"../gfx1100/{entry_for(ADD, 'gfx1100').file_name}")
        member.size = len(data)
        file.addfile(member, io.BytesIO(data))
    done = call(["kernels", "import", str(archive), "--cache-dir", str(tmp_path / "other")], env)
    assert done.code == 6 and "no compiled kernel" in done.err


def test_no_torch_for_what_needs_none(tmp_path: Path):
    home = environment(tmp_path)
    Store(tmp_path / "llmrun" / "cache" / "kernels", "sm_90").put(entry_for(ADD, "sm_90"))
    assert not {"torch", "triton"} & imports(["kernels", "verify", "--arch", "all"], home)


def test_kernels_lie_in_the_cache(tmp_path: Path):
    paths = Paths(*(tmp_path / name for name in ("config", "data", "models", "state", "cache")))
    assert paths.kernels == tmp_path / "cache" / "kernels"
