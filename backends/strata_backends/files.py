"""Small files of the kernel's drivers, read without failing: what is missing or damaged is empty, never guessed."""

from __future__ import annotations

import re
from pathlib import Path


def text(path: Path) -> str:
    """The content without blanks around it, "" when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def number(path: Path) -> int | None:
    """A plain decimal number, else None."""
    found = text(path)
    return int(found) if re.fullmatch(r"[0-9]{1,19}", found) else None


def pairs(path: Path) -> dict[str, int]:
    """Lines `name number`; others are left out."""
    found: dict[str, int] = {}
    for line in text(path).splitlines():
        name, _, value = line.partition(" ")
        if re.fullmatch(r"[0-9]{1,20}", value.strip()):
            found[name] = int(value)
    return found


def entries(folder: Path, pattern: str) -> list[Path]:
    """What matches in a folder, in numeric order; nothing when there is no such folder."""
    try:
        found = list(folder.glob(pattern))
    except OSError:
        return []
    return sorted(found, key=lambda p: (len(p.name), p.name))


def link_of(device: Path) -> str:
    """Speed and width of a PCI device's link now: "16.0 GT/s PCIe x16"."""
    speed, width = text(device / "current_link_speed"), text(device / "current_link_width")
    return f"{speed} x{width}" if speed and width else ""
