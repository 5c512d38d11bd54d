"""Changes single lines of config.toml and leaves the rest, comments included, as it is."""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path
from typing import Any

from strata_cli.keys import KEYS, Key
from strata_cli.settings import line_of, near_keys, parse_config
from strata_engine.errors import UsageError


def known_key(name: str) -> Key:
    """The key of a name as typed (kv-type and kv_type are the same). Raises UsageError with near names."""
    key = KEYS.get(name.replace("-", "_"))
    if key is None:
        raise UsageError(f"unknown setting: {name}", near_keys(name))
    return key


def with_value(text: str, key: Key, value: Any) -> str:
    """The config text with one setting changed or added. Raises UsageError when the line cannot be told apart."""
    line = f"{key.name} = {_toml(value)}"
    lines = text.splitlines()
    index = _index(lines, key.name)
    if index is None:
        # Above any table header: a key below one would belong to that table.
        at = next((i for i, old in enumerate(lines) if re.match(r"\s*\[", old)), len(lines))
        lines.insert(at, line)
    else:
        comment = re.search(r"\s+#[^\"']*$", lines[index])
        lines[index] = line + (comment[0] if comment else "")
    return _verified("\n".join(lines) + "\n", key.name, value)


def without_value(text: str, key: Key) -> str | None:
    """The config text without one setting; None when it is not set there."""
    lines = text.splitlines()
    index = _index(lines, key.name)
    if index is None:
        return None
    del lines[index]
    return _verified("".join(line + "\n" for line in lines), key.name, None)


def write(file: Path, text: str) -> None:
    """Replace the file in one step; a link keeps pointing at its target; readable by its owner only when new."""
    target = file.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.{os.getpid()}.new")
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o600
    try:
        part.touch(mode=mode)
        part.write_text(text, encoding="utf-8", errors="surrogateescape")
        part.replace(target)
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def _index(lines: list[str], name: str) -> int | None:
    number = line_of(name, "\n".join(lines)) - 1
    return number if number < len(lines) and re.match(rf"\s*[\"']?{name}[\"']?\s*=", lines[number]) else None


def _verified(text: str, name: str, value: Any) -> str:
    found = parse_config(text, "config file").get(name)
    if (found.value if found else None) != value:
        raise UsageError(f"{name} is written over several lines", "llmrun config edit")
    return text


def _toml(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)
