"""A path as a model: one weight file, all shards of a set, or a checkpoint directory.

Names are checked; no content is read, but for the index that names the shards.
"""

from __future__ import annotations

import json
import stat
from pathlib import Path

from strata_engine.errors import CorruptFile, NotFound, UsageError
from strata_engine.paths import expand
from strata_engine.registry.files import LocalFile, ModelFiles
from strata_engine.registry.roles import odd_shard, ordered, role_of, shard_of
from strata_engine.registry.selection import projector_for

_INDEX = "model.safetensors.index.json"


def local_model(path_text: str, name: str = "") -> ModelFiles:
    """The model at a path. Raises NotFound, UsageError for what is no model, CorruptFile for missing shards."""
    path = expand(path_text).absolute()
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound(f"no such file or directory: {path_text}", "llmrun ls") from error
    except (OSError, ValueError) as error:
        raise NotFound(f"cannot read {path_text}: {error}") from error
    if stat.S_ISDIR(mode):
        files, directory = _directory(path)
        shown = path.name
    elif stat.S_ISREG(mode):
        files, directory = (*_single(path), *_projector_beside(path)), None
        shard = shard_of(path.name)
        shown = shard.stem if shard else path.stem
    else:
        raise UsageError(f"{path_text} is neither a file nor a directory")
    return ModelFiles(name or shown, str(path), str(path), files, directory)


def config_only(path_text: str) -> ModelFiles | None:
    """A directory with a config.json but no weights, to be described; None for everything else. Raises nothing."""
    path = expand(path_text).absolute()
    try:
        names = [p.name for p in path.iterdir() if p.is_file()] if path.is_dir() else []
    except OSError:
        return None
    if "config.json" not in names or any(n.endswith((".safetensors", ".gguf")) for n in names):
        return None
    files = tuple(_file(path / n, role_of(n)) for n in ordered(names) if n.endswith(".json"))
    return ModelFiles(path.name, str(path), str(path), files, path, notes=("no weights here: described by its config",))


def _single(path: Path) -> tuple[LocalFile, ...]:
    odd = odd_shard(path.name)
    if odd and odd.count > 1:
        raise CorruptFile(f"{path.name} looks like a shard, but its siblings cannot be found by that name",
                          f"rename it to {odd.name(odd.index)}")  # fmt: skip
    shard = shard_of(path.name)
    if shard is None:
        return (_file(path, "weights"),)
    names = [shard.name(i) for i in range(1, shard.count + 1)]
    return tuple(_file(p, "weights") for p in _all_present(path.parent, names))


def _projector_beside(path: Path) -> tuple[LocalFile, ...]:
    """The image projector in a GGUF file's folder that is its own by name, or by being the only model's there."""
    if role_of(path.name) != "weights" or not path.name.lower().endswith(".gguf"):
        return ()
    names = [p.name for p in path.parent.glob("*.[gG][gG][uU][fF]") if p.is_file()]
    found = projector_for(path.name, names)
    return (_file(path.parent / found, "mmproj"),) if found else ()


def _all_present(folder: Path, names: list[str]) -> list[Path]:
    missing = [n for n in names if not (folder / n).is_file()]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise CorruptFile(f"{len(missing)} of {len(names)} files of the model are missing in {folder}: "
                          f"{', '.join(missing[:3])}{more}", "copy or download the missing files",
                          {"missing": missing})  # fmt: skip
    return [folder / n for n in names]


def _directory(path: Path) -> tuple[tuple[LocalFile, ...], Path | None]:
    names = ordered(p.name for p in path.iterdir() if p.is_file())
    gguf = [n for n in names if n.lower().endswith(".gguf")]
    if "config.json" in names:
        return _checkpoint(path, names), path
    if gguf:
        return _gguf_directory(path, gguf), None
    raise UsageError(f"{path} holds no model: neither a .gguf file nor config.json with .safetensors files",
                     "name the model's file or directory")  # fmt: skip


def _checkpoint(path: Path, names: list[str]) -> tuple[LocalFile, ...]:
    if _INDEX in names:
        weights = {p.name for p in _all_present(path, ordered(_indexed(path / _INDEX)))}
    else:
        weights = {n for n in names if n.endswith(".safetensors")}
        for shard in filter(None, map(shard_of, sorted(weights))):
            _all_present(path, [shard.name(i) for i in range(1, shard.count + 1)])
    if not weights:
        raise UsageError(f"{path} has a config.json but no .safetensors file", "other weight formats are not read")
    kept = [n for n in names if n in weights or role_of(n) not in ("", "weights", "mmproj", "draft")]
    return tuple(_file(path / n, role_of(n)) for n in kept)


def _indexed(index: Path) -> set[str]:
    try:
        return {str(v) for v in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptFile(f"{index}: not a safetensors index ({error})", details={"file": str(index)}) from error


def _gguf_directory(path: Path, names: list[str]) -> tuple[LocalFile, ...]:
    weights = [n for n in names if role_of(n) == "weights"]
    sets = {s.stem if (s := shard_of(n)) else n for n in weights}
    if len(sets) != 1:
        raise UsageError(f"{path} holds {len(sets)} models: {', '.join(sorted(sets)[:5])}", "name one of the files")
    others = [n for n in names if role_of(n) not in ("weights", "mmproj")]
    single = path / weights[0]
    return (*_single(single), *_projector_beside(single), *(_file(path / n, role_of(n)) for n in others))


def _file(path: Path, role: str) -> LocalFile:
    return LocalFile(path, path.name, role, path.stat().st_size)
