"""Opens the drafters that a config asks for, or says why there are none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module

from strata_backends.base import Choice
from strata_engine.config import SPEC_METHODS, SpecConfig
from strata_engine.draft import DRAFTERS
from strata_engine.draft.base import DraftContext, Drafter
from strata_engine.draft.controller import Controller
from strata_engine.draft.plan import Control, FixedControl
from strata_engine.errors import LlmrunError, NotFound, UsageError
from strata_engine.events import Notice

_WITH_WEIGHTS = ("dflash", "eagle3", "draft")  # drafters that are files of their own


@dataclass(frozen=True)
class Drafting:
    """The drafters of an engine, what chooses between them, and the deepest chain of drafts; 0 without any."""

    drafters: tuple[Drafter, ...] = ()
    control: Control | None = None
    most: int = 0
    choices: tuple[Choice, ...] = ()
    notices: tuple[Notice, ...] = ()


def check_spec(spec: SpecConfig) -> None:
    """Refuse what cannot be honoured. Raises UsageError naming field and value."""
    if spec.method not in SPEC_METHODS:
        raise UsageError(f"unknown speculation method {spec.method!r}", hint=f"one of: {', '.join(SPEC_METHODS)}")
    if spec.n_max is not None and spec.n_max < 1:
        raise UsageError(f"{spec.n_max} drafts a step are too few, at least 1", hint="--spec none switches drafts off")
    if not 0.0 <= spec.p_min <= 1.0:
        raise UsageError(f"a least probability of {spec.p_min:g} is not between 0 and 1")
    if spec.draft is not None and spec.method not in (*_WITH_WEIGHTS, "auto"):
        text = f"--spec {spec.method} takes no drafter file, {spec.draft} was given"
        raise UsageError(text, hint=f"--spec auto, {', '.join(_WITH_WEIGHTS)}")


def open_drafters(context: DraftContext) -> Drafting:
    """The drafters of `context.config.spec`.

    Raises what opening raises when the config is strict; otherwise that becomes a notice, and decoding is plain.
    """
    spec = context.config.spec
    if spec.method == "none":
        return Drafting()
    try:
        found, notices = _open(context, spec)
    except LlmrunError as error:
        if spec.strict:
            raise
        return Drafting(notices=(Notice("spec_unavailable", f"no speculation ({spec.method}): {error.message}"),))
    most = min(spec.n_max or max(drafter.most for drafter in found), max(drafter.most for drafter in found))
    choices = tuple(Choice("drafter", drafter.name, _told(drafter, most)) for drafter in found)
    return Drafting(tuple(found), _control(found, spec, most), most, choices, tuple(notices))


def _control(found: Sequence[Drafter], spec: SpecConfig, most: int) -> Control:
    """What chooses between the drafters and their depths; with `adaptive` off always the deepest of the first."""
    if spec.adaptive:
        return Controller({drafter.name: drafter.most for drafter in found}, most, spec.p_min)
    return FixedControl(most, found[0].name)


def _open(context: DraftContext, spec: SpecConfig) -> tuple[list[Drafter], list[Notice]]:
    """At least one drafter. Raises NotFound, UsageError, and what a drafter raises."""
    if spec.method != "auto":
        if spec.method in _WITH_WEIGHTS and context.draft is None:
            raise UsageError(f"--spec {spec.method} needs a drafter", hint="--draft REF")
        return [_open_one(spec.method, context)], []
    found: list[Drafter] = []
    refused: dict[str, str] = {}
    for method in _methods(context):
        try:
            found.append(_open_one(method, context))
        except NotFound:
            continue  # a model without a draft head is no fault
        except LlmrunError as error:
            refused[method] = error.message
    if not found:
        raise NotFound("there is no drafter for this model")
    if any(drafter.name in _WITH_WEIGHTS for drafter in found):  # the file was of one kind, so it is not of the others
        refused = {method: text for method, text in refused.items() if method not in _WITH_WEIGHTS}
    told = [Notice("spec_unavailable", f"drafter {method} is left out: {text}") for method, text in refused.items()]
    return found, told


def _methods(context: DraftContext) -> Iterable[str]:
    """What `auto` tries; of the drafters with weights only the one that the file is for."""
    return [method for method in DRAFTERS if method not in _WITH_WEIGHTS or context.draft is not None]


def _open_one(method: str, context: DraftContext) -> Drafter:
    if method not in DRAFTERS:
        raise UsageError(f"drafter {method} does not exist in this build", hint=f"one of: {', '.join(DRAFTERS)}")
    module, _, name = DRAFTERS[method].partition(":")
    return getattr(import_module(module), name)(context)


def _told(drafter: Drafter, most: int) -> str:
    facts = ", ".join(f"{name} {value}" for name, value in drafter.report().items())
    return f"up to {min(most, drafter.most)} drafts a step{f'; {facts}' if facts else ''}"
