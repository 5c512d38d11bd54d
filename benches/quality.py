#!/usr/bin/env python3
"""Mean divergence of the native kernels from the exact forward on a fixed text, as one JSON line a mode.

The exact forward: plain f32 operations on the same weights, f32 cache. Native: keys and values in each of --kv-types.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "backends"), str(ROOT / "kernels")]

from benches.common import emit  # noqa: E402
from strata_engine.bench.quality import divergence, forward_of  # noqa: E402
from strata_engine.formats.open import open_weights  # noqa: E402
from strata_engine.text.rules import load_text_rules  # noqa: E402
from strata_kernels.native import NativeOps  # noqa: E402
from strata_kernels.reference.ops import ReferenceOps  # noqa: E402

TEXT = Path(__file__).with_name("quality_text.txt")
BITS = {"exact": 16, "fast": 8}


def main() -> None:
    """Compare every mode asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a GGUF file with a tokenizer")
    parser.add_argument("--modes", default="exact,fast", help="of: exact, fast")
    parser.add_argument("--kv-types", default="f16", help="of config.KV_TYPES: f16, int8, f16/q4, ...")
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    with closing(open_weights(options.model)) as source:
        tokenizer = load_text_rules(source.metadata()).tokenizer
        if tokenizer is None:
            sys.exit(f"{options.model} has no tokenizer")
        ids = tokenizer.encode(options.text.read_text(encoding="utf-8"))
        room = len(ids) + 32
        wanted = forward_of(source, ReferenceOps(), "f32", room)(ids)
        for mode in options.modes.split(","):
            for kv_type in options.kv_types.split(","):
                ops = NativeOps(options.threads, activation_bits=BITS[mode])
                found = divergence(lambda _: wanted, forward_of(source, ops, kv_type, room), [ids])
                emit(mode=mode, kv_type=kv_type, **asdict(found))


if __name__ == "__main__":
    main()
