"""The files of a split GGUF model: which names belong together, and whether all parts are there and agree. No torch.

Names are looked at first, then the split keys of every header, so that a missing part is named before anything is read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from strata_engine.errors import CorruptFile
from strata_engine.formats.gguf_header import GgufHeader

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_HINT = "All parts of a split model must lie in one directory under their original names; pull the model again."


def part_names(path: Path) -> list[Path] | None:
    """All paths of the split model that `path` is named as a part of; None when its name is not that of a part."""
    match = _PART.fullmatch(path.name)
    if match is None or int(match["count"]) < 2:
        return None
    count = match["count"]
    return [path.with_name(f"{match['stem']}-{n:05d}-of-{count}.gguf") for n in range(1, int(count) + 1)]


def find_parts(path: Path, header: GgufHeader) -> list[Path]:
    """Every file of the model `path` belongs to, in order: itself alone, or all parts. Raises CorruptFile."""
    number, count = header.split
    names = part_names(path)
    if count < 2:
        if names is not None:
            raise _bad(f"{path} is named as one of {len(names)} parts, but its header has no split.count")
        return [path]
    if names is None:
        wanted = f"NAME-{number + 1:05d}-of-{count:05d}.gguf"
        raise _bad(f"{path} is part {number + 1} of {count} of a split model; its name must look like {wanted}")
    if len(names) != count:
        raise _bad(f"{path} is named as one of {len(names)} parts, its header says split.count {count}")
    missing = [name.name for name in names if not name.is_file()]
    if missing:
        listed = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise _bad(
            f"{path.parent}: {len(missing)} of the {count} parts of a split model are missing: {listed}", missing
        )
    return names


def order_parts(parts: Sequence[tuple[Path, GgufHeader]]) -> list[tuple[Path, GgufHeader]]:
    """The parts by split.no. Raises CorruptFile unless they are exactly one whole model."""
    if len(parts) == 1 and parts[0][1].split[1] < 2:
        return list(parts)
    counts = {header.split[1] for _, header in parts}
    if len(counts) > 1:
        listed = ", ".join(f"{path.name}: {header.split[1]}" for path, header in parts)
        raise _bad(f"parts of a split model disagree on split.count ({listed})")
    count = counts.pop()
    if count < 2:
        listed = ", ".join(path.name for path, _ in parts)
        raise _bad(f"{len(parts)} files were given as one model, but they are not parts of a split model: {listed}")
    found = Counter(header.split[0] for _, header in parts)
    twice = [path.name for path, header in parts if found[header.split[0]] > 1]
    if twice:
        raise _bad(f"these files claim the same part of a split model: {', '.join(twice)}")
    if len(parts) != count:
        absent = [str(n + 1) for n in range(min(count, 1000)) if n not in found][:10]
        raise _bad(f"a split model of {count} parts was given {len(parts)} files; missing part {', '.join(absent)}")
    ordered = sorted(parts, key=lambda part: part[1].split[0])
    _check_names(ordered)
    _check_tensor_count(ordered)
    return ordered


def _check_names(ordered: Sequence[tuple[Path, GgufHeader]]) -> None:
    """A file named as part k must be part k: shards swapped by hand would give a mixed-up model."""
    for position, (path, _) in enumerate(ordered):
        match = _PART.fullmatch(path.name)
        if match is not None and int(match["number"]) != position + 1:
            raise _bad(f"{path} is named as part {int(match['number'])}, its header says it is part {position + 1}")


def _check_tensor_count(ordered: Sequence[tuple[Path, GgufHeader]]) -> None:
    total = sum(len(header.tensors) for _, header in ordered)
    wanted = ordered[0][1].metadata.get("split.tensors.count")
    if wanted is not None and wanted != total:
        raise _bad(f"{ordered[0][0]}: the split model should have {wanted} tensors, its parts hold {total}")
    if total == 0:
        raise _bad(f"{ordered[0][0]}: the split model holds no tensors")
    seen: dict[str, Path] = {}
    for path, header in ordered:
        for name in header.tensors:
            if name in seen:
                raise _bad(f"tensor {name!r} is in two parts: {seen[name].name} and {path.name}")
            seen[name] = path


def _bad(message: str, missing: Sequence[str] = ()) -> CorruptFile:
    return CorruptFile(message, hint=_HINT, details={"missing": list(missing)} if missing else None)
