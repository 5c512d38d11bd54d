"""How devices are named on a command line: a kind, and which card of it. Data only: imported by every start."""

from __future__ import annotations

import re

KINDS = ("cpu", "cuda", "hip", "musa")
OVERRIDES = ("HSA_OVERRIDE_GFX_VERSION", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES",
             "CUDA_DEVICE_ORDER", "MUSA_VISIBLE_DEVICES")  # fmt: skip
MEANING = "auto, cpu, cuda, hip or musa; hip:1 = the second card of a kind"


def parse_device(text: str) -> tuple[str, int]:
    """(kind, index) of "hip:1"; a kind alone means its first card, "auto" has index 0. Raises ValueError."""
    found = re.fullmatch(r"([a-z]+)(?::([0-9]{1,3}))?", text)
    if found is None or found[1] not in ("auto", *KINDS) or (found[2] and found[1] in ("auto", "cpu")):
        raise ValueError(f"{text!r} is no device; there are auto, {', '.join(KINDS)}, with a card's number as in hip:1")
    return found[1], int(found[2] or 0)
