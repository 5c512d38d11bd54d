"""Drafters of speculative decoding: one line a method. Importing this imports no drafter."""

from __future__ import annotations

# method -> "module:function"; the function is an OpenDrafter
DRAFTERS: dict[str, str] = {
    "dflash": "strata_engine.draft.dflash:open_dflash",
    "draft": "strata_engine.draft.model:open_model",
    "eagle3": "strata_engine.draft.eagle3:open_eagle3",
    "mtp": "strata_engine.draft.mtp:open_mtp",
    "ngram": "strata_engine.draft.ngram:open_ngram",
    "suffix": "strata_engine.draft.suffix:open_suffix",
}
