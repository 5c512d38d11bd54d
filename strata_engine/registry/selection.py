"""Which files of a repository make up the wanted model: by quant at a word edge, with all shards."""

from __future__ import annotations

import re
from collections.abc import Sequence

from strata_engine.errors import NotFound
from strata_engine.registry.entries import CatalogFile
from strata_engine.registry.roles import ordered, role_of, shard_of

_QUANT = re.compile(r"(?:UD-)?(?:I?Q\d_[A-Z0-9_]+|Q\d_\d|TQ\d_\d|BF16|F16|F32|MXFP4(?:_MOE)?)", re.IGNORECASE)
_DEFAULT_QUANTS = ("Q4_K_M", "Q4_K_S", "Q4_0")


def matches_quant(path: str, quant: str) -> bool:
    """Whether `quant` stands in a path at word edges, in any case: Q4_K fits x-Q4_K.gguf, not x-Q4_K_M.gguf."""
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(quant)}(?![A-Za-z0-9_])", path, re.IGNORECASE) is not None


def quant_of(path: str) -> str:
    """The quant a file name mentions, in upper case; "" if none."""
    found = _QUANT.findall(path.rsplit("/", 1)[-1]) or _QUANT.findall(path)
    return found[-1].upper() if found else ""


def select(files: Sequence[CatalogFile], wanted: str, repo: str) -> tuple[list[CatalogFile], str]:
    """Files of one model out of a repository's listing, and the variant's name.

    `wanted` is a quant, a file path, or "". Raises NotFound with the list of what is there.
    """
    gguf = [f for f in files if role_of(f.name) == "weights" and f.path.lower().endswith(".gguf")]
    if any(f.path.lower() == wanted.lower() for f in files if wanted):
        return _by_path(files, wanted), ""
    if not gguf:
        return _checkpoint(files, wanted, repo)
    sets = _sets(gguf)
    names = _matching(sets, wanted)
    if len(names) != 1:
        raise _choice(sets, names, wanted, repo)
    chosen = sets[names[0]]
    return _complete(chosen, files), wanted or quant_of(chosen[0].path) or names[0]


def _by_path(files: Sequence[CatalogFile], wanted: str) -> list[CatalogFile]:
    first = next(f for f in files if f.path.lower() == wanted.lower())
    shard = shard_of(first.name)
    if shard is None:
        return [CatalogFile(first.path, "weights", first.size, first.sha256)]
    folder = first.path[: len(first.path) - len(first.name)]
    names = {folder + shard.name(i) for i in range(1, shard.count + 1)}
    return _complete([f for f in files if f.path in names], files)


def _sets(files: Sequence[CatalogFile]) -> dict[str, list[CatalogFile]]:
    """Shards of one file together, under the path without the shard's number."""
    sets: dict[str, list[CatalogFile]] = {}
    by_path = {f.path: f for f in files}
    for path in ordered(by_path):
        file = by_path[path]
        shard = shard_of(file.name)
        folder = path[: len(path) - len(file.name)]
        sets.setdefault(folder + shard.stem + shard.ending if shard else path, []).append(file)
    return sets


def _matching(sets: dict[str, list[CatalogFile]], wanted: str) -> list[str]:
    if wanted:
        names = [n for n in sets if matches_quant(n, wanted)]
        exact = [n for n in names if quant_of(n) == wanted.upper()]
        return exact if len(exact) == 1 else names
    for quant in _DEFAULT_QUANTS:
        names = [n for n in sets if matches_quant(n, quant)]
        if len(names) == 1:
            return names
    return list(sets)


def _choice(sets: dict[str, list[CatalogFile]], names: list[str], wanted: str, repo: str) -> NotFound:
    listed = names or list(sets)
    quants = sorted({quant_of(n) or n for n in listed})
    if wanted and not names:
        text = f"{repo} has no file for {wanted}"
    else:
        text = f"{repo} has {len(listed)} files that fit {wanted}" if wanted else f"{repo} has {len(listed)} quants"
    shown = ", ".join(quants[:20]) + (" ..." if len(quants) > 20 else "")
    example = f"{repo}:{quants[0]}" if len(quants) > 1 or not names else f"{repo}/{sorted(listed)[0]}"
    return NotFound(f"{text}; there are: {shown}", f"llmrun pull {example}", {"near": quants, "files": sorted(listed)})


def _complete(chosen: Sequence[CatalogFile], files: Sequence[CatalogFile]) -> list[CatalogFile]:
    first = chosen[0]
    shard = shard_of(first.name)
    if shard is not None and len(chosen) != shard.count:
        have = {f.name for f in chosen}
        missing = [n for i in range(1, shard.count + 1) if (n := shard.name(i)) not in have]
        raise NotFound(f"the source lacks {len(missing)} of {shard.count} shards: {', '.join(missing[:3])}",
                       "another quant or another repository")  # fmt: skip
    return list(chosen)


def _checkpoint(files: Sequence[CatalogFile], wanted: str, repo: str) -> tuple[list[CatalogFile], str]:
    """Root files of a safetensors checkpoint: weights, config, tokenizer, template."""
    if wanted:
        raise NotFound(f"{repo} has no file for {wanted}: it holds no GGUF files", f"llmrun pull {repo}")
    root = [f for f in files if "/" not in f.path]
    kept = [CatalogFile(f.path, role_of(f.name), f.size, f.sha256) for f in root if role_of(f.name)]
    if not any(f.role == "weights" for f in kept) or not any(f.path == "config.json" for f in kept):
        raise NotFound(f"{repo} holds no model that can be read: no GGUF and no config.json with .safetensors",
                       "another repository")  # fmt: skip
    return kept, ""


def add_mmproj(chosen: list[CatalogFile], files: Sequence[CatalogFile], fitting: bool = False) -> list[CatalogFile]:
    """The files with the repository's image projector, 16 bit where there is a choice.

    `fitting`: only one that belongs to the chosen GGUF file by the rule of `projector_for`.
    """
    found = [f for f in files if role_of(f.name) == "mmproj"]
    if fitting:
        model = next((f.name for f in chosen if f.role == "weights" and f.name.endswith(".gguf")), "")
        name = projector_for(model, [f.name for f in files]) if model else ""
        found = [f for f in found if f.name == name]
    if not found or any(f.path == o.path for f in found for o in chosen):
        return chosen
    best = min(found, key=lambda f: _closest(f.path))
    return [*chosen, CatalogFile(best.path, "mmproj", best.size, best.sha256)]


def projector_for(model: str, names: Sequence[str]) -> str:
    """The image projector among the file names of a model's folder, 16 bit where there is a choice; "" for none.

    Where the folder holds other models too, a projector must begin with the model's name, but for its quant.
    """
    found = [n for n in names if role_of(n) == "mmproj"]
    alone = len({_plain_name(n) for n in names if role_of(n) == "weights"}) == 1
    if not alone:
        found = [n for n in found if (own := _plain_name(n)) and _plain_name(model).startswith(own)]
        longest = max((len(_plain_name(n)) for n in found), default=0)
        found = [n for n in found if len(_plain_name(n)) == longest]
    return min(found, key=_closest, default="")


def _closest(path: str) -> tuple[int, str]:
    return {"F16": 0, "BF16": 1}.get(quant_of(path), 2), path


def _plain_name(name: str) -> str:
    """A file name without ending, shard number, quant and the word mmproj, in lower case."""
    shard = shard_of(name)
    stem = (shard.stem if shard else name.rsplit(".", 1)[0]).lower().replace("mmproj", "")
    return re.sub(r"[^a-z0-9]", "", _QUANT.sub("", stem))
