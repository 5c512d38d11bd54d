"""Everything between a list of files and a running engine: prices it, loads it, and records each choice and why."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from strata_backends.base import Backend, Choice, ChosenOps, DeviceInfo, Profile
from strata_backends.machine import memory_bytes
from strata_engine.config import NO_PROJECTOR, EngineConfig, SamplingParams
from strata_engine.core.batch import BatchLimits
from strata_engine.draft.base import DraftContext, DraftRoom
from strata_engine.errors import DeviceError, NotFound, UsageError
from strata_engine.events import Notice
from strata_engine.formats.base import WeightSource
from strata_engine.formats.open import open_weights
from strata_engine.formats.projector import open_with_projector, projector_of
from strata_engine.memory.kv import PerLayer, Zeros
from strata_engine.memory.memory import Memory
from strata_engine.models.config import special_ids
from strata_engine.models.load import Loaded, Progress, load_model
from strata_engine.placement.estimate import Estimate, estimate, require_fit
from strata_engine.registry.files import ModelFiles
from strata_engine.runtime.defaults import default_context, merge_defaults
from strata_engine.runtime.drafters import Drafting, check_spec, open_drafters
from strata_engine.runtime.executor import Executor
from strata_engine.runtime.scheduler import Scheduler, SchedulerLimits
from strata_engine.runtime.sight import Eye, make_eye
from strata_engine.runtime.speculation import Speculation, wants_of
from strata_engine.runtime.splitting import split
from strata_engine.text.base import TextRules
from strata_kernels.ops import Ops

MODES = ("exact", "fast")  # fast may vary with the batch; a backend without faster kernels runs exact and says so


@dataclass(frozen=True)
class Opened:
    """The parts of an engine, made and fitted to each other."""

    files: ModelFiles
    config: EngineConfig
    source: WeightSource
    device: DeviceInfo
    loaded: Loaded
    rules: TextRules
    memory: Memory
    executor: Executor
    scheduler: Scheduler
    priced: Estimate
    defaults: SamplingParams
    eos: frozenset[int]
    choices: tuple[Choice, ...]
    notices: tuple[Notice, ...]
    eye: Eye | None = None  # of a model that sees
    speculation: Speculation = field(default_factory=Speculation)


def open_parts(files: ModelFiles, config: EngineConfig, backend: Backend, progress: Progress | None = None) -> Opened:
    """Open, price, load. Raises CorruptFile, UsageError, OutOfMemory, DeviceError, NotFound."""
    check_config(config)
    source = open_files(files, config.projector)
    try:
        return _open(files, config, backend, source, progress)
    except BaseException:
        source.close()
        raise


def check_config(config: EngineConfig) -> None:
    """Refuse what cannot be honoured. Raises UsageError naming field and value."""
    if config.mode not in MODES:
        raise UsageError(f"unknown mode {config.mode!r}", hint=f"one of: {', '.join(MODES)}")
    check_spec(config.spec)
    least = {
        "context_tokens": config.context_tokens if config.context_tokens is not None else 2,
        "max_sequences": config.max_sequences,
        "batch_rows": config.batch_rows,
        "page_tokens": config.page_tokens,
    }
    for name, value in least.items():
        low = 2 if name == "context_tokens" else 1
        if value < low:
            raise UsageError(f"{name} {value} is too small, at least {low}")
    if config.max_queue < 0 or config.threads < 0:
        raise UsageError(f"max_queue {config.max_queue} and threads {config.threads} must not be negative")


def open_files(files: ModelFiles, projector: str | None = None) -> WeightSource:
    """The weights of a model: its directory, or its weight files in order and its image projector.

    `projector` as in EngineConfig. Raises CorruptFile, NotFound, UsageError.
    """
    if files.directory is not None:
        if projector not in (None, NO_PROJECTOR):
            raise UsageError(f"{projector}: an image projector goes with a GGUF model, not with safetensors files")
        return open_weights(files.directory)
    weights = [file.path for file in files.role("weights")]
    if not weights:
        raise NotFound(f"{files.name} has no weight files", hint=f"pull it again: llmrun pull {files.reference}")
    own = [file.path for file in files.role("mmproj")]
    asked = [] if projector == NO_PROJECTOR else [Path(projector)] if projector else own
    return open_with_projector(weights, asked)


def _open(
    files: ModelFiles, config: EngineConfig, backend: Backend, source: WeightSource, progress: Progress | None
) -> Opened:
    notes: list[Choice] = []
    info = backend.info()
    config, priced = _price(source, config, files, backend, notes)
    if (seen_through := projector_of(source)) is not None:
        why = "asked for" if config.projector else "beside the model's weights"
        notes.append(Choice("image projector", seen_through.name, why))
    ops, placed = split(source, config, priced, _ops(backend, config, notes), info.free_bytes)
    notes.extend(placed)
    # packing leaves the interpreter's lock, building a vocabulary holds it: side by side they take the longer time
    with ThreadPoolExecutor(1, "text rules") as beside:
        making = beside.submit(make_rules, files, config, source)
        loaded = load_model(source, ops, config.mmap, progress, config.quantize_rest)
        rules, notes_of_text = making.result()
    notes.extend(notes_of_text)
    if config.quantize_rest != "none":
        why = f"relative error (RMS) of what was left in floats: {loaded.rest.summary()}"
        notes.append(Choice("quantize rest", config.quantize_rest, why))
    eye = make_eye(loaded.tower, rules.tokenizer)
    drafting = _drafting(config, source, loaded, ops, rules)
    notes.extend(drafting.choices)
    layers = [loaded.model.memory(), *(drafter.memory() for drafter in drafting.drafters)]
    memory = Memory(
        [layer for part in layers for layer in part],
        priced.pool_tokens // config.page_tokens,
        config.page_tokens,
        config.kv_type,
        _zeros(ops),
        config.max_sequences,
        drafting.most,
    )
    if config.prefix_cache:
        notes.append(_share(memory, priced))
    # a full house of decode rows must fit into one step
    rows = max(config.batch_rows, config.max_sequences)
    with_logits = min(rows, config.max_sequences * (1 + drafting.most))
    limits = BatchLimits(rows, config.max_sequences, priced.context_tokens, with_logits)
    scheduler = Scheduler(memory, SchedulerLimits(config.max_sequences, config.max_queue, rows, priced.context_tokens))
    wants, width = wants_of(drafting.drafters), eye.feature_width if eye else 0
    executor = Executor(loaded.model, ops, memory, limits, width, wants)
    bind_drafters(drafting, memory, executor, len(layers[0]))
    notes.extend(_build_kernels(ops, executor, drafting, backend.name))
    notes_of_files = tuple(Notice("model", note) for note in files.notes)
    notices = (*notes_of_files, *loaded.notices, *_context_notice(config, priced), *rules.notices, *drafting.notices)
    return Opened(
        files=files,
        config=config,
        source=source,
        device=info,
        loaded=loaded,
        rules=rules,
        memory=memory,
        executor=executor,
        scheduler=scheduler,
        priced=priced,
        defaults=merge_defaults(source.metadata(), files.defaults, config.defaults),
        eos=special_ids(source.metadata()) | (rules.tokenizer.eos_ids if rules.tokenizer else frozenset()),
        choices=tuple(notes),
        notices=notices,
        eye=eye,
        speculation=Speculation(drafting.drafters, drafting.control, drafting.most, loaded.model.config.vocab_size),
    )


def _drafting(config: EngineConfig, source: WeightSource, loaded: Loaded, ops: Ops, rules: TextRules) -> Drafting:
    """The drafters asked for. Raises what opening them raises, when the config is strict."""
    path = None if config.spec.draft is None else Path(config.spec.draft)
    return open_drafters(DraftContext(loaded.model, source, ops, config, rules, path))


def _share(memory: Memory, priced: Estimate) -> Choice:
    """Turn the prefix cache on; copies of states take half of what is left at most: the estimate is not exact."""
    copies = memory.share_prefixes((priced.free_bytes - priced.total_bytes) // 2)
    if memory.prefixes is None:
        return Choice("prefix cache", "off", "no memory is left for copies of recurrent states")
    what = f"on, {copies} copies of states" if memory.recurrent else "on"
    return Choice("prefix cache", what, "pages that nobody holds are kept until they are needed")


def bind_drafters(drafting: Drafting, memory: Memory, executor: Executor, first: int) -> None:
    """Give each drafter the caches of its layers, which stand behind the target's `first` layers."""
    for drafter in drafting.drafters:
        end = first + len(drafter.memory())
        drafter.bind(DraftRoom(memory.caches[first:end], executor.ops, executor.limits, memory.page_tokens))
        first = end


def _zeros(ops: Any) -> Zeros | PerLayer:
    """Who makes the memory of layers."""
    return PerLayer(ops.zeros_of) if hasattr(ops, "zeros_of") else ops.zeros


def _build_kernels(ops: Any, executor: Executor, drafting: Drafting, device: str) -> list[Choice]:
    """Where kernels are compiled for a device: those that steps of this model launch, before the first of them."""
    if not hasattr(ops, "planning"):
        return []
    with ops.planning() as variants:
        executor.plan()
        for drafter in drafting.drafters:
            drafter.plan()
    try:
        done = ops.build(variants)
    except RuntimeError as error:
        hint = getattr(error, "hint", "") or "llmrun kernels build says more"
        raise DeviceError(f"{device}: {error}", hint=hint) from error
    return [Choice("compiled kernels", f"{len(variants)} variants", done or "as they are needed")]


def _price(
    source: WeightSource, config: EngineConfig, files: ModelFiles, backend: Backend, notes: list[Choice]
) -> tuple[EngineConfig, Estimate]:
    info = backend.info()
    asked = config.context_tokens
    if asked is None:
        config = replace(config, context_tokens=default_context(files.defaults, config.defaults))
    # without native kernels "auto" means the plain operations, which need four more bytes a weight
    plain = config.kernels == "auto" and not info.features
    wanted = replace(config, kernels="reference") if plain else config
    priced = estimate(source, wanted, info.free_bytes)
    if not priced.fits and backend.name != "cpu":  # the processor may take a part
        priced = estimate(source, wanted, info.free_bytes + memory_bytes()[1], info.free_bytes)
    require_fit(priced)
    why = priced.context_why
    if asked is None and config.context_tokens is not None and why == "as asked":
        why = "the catalog's"
    notes.append(Choice("device", info.name, info.arch))
    notes.append(Choice("context", f"{priced.context_tokens} tokens", why))
    pages = f"{priced.pool_tokens} tokens in pages of {config.page_tokens}"
    notes.append(Choice("kv cache", f"{config.kv_type}, {pages}", "shared by all sequences; pages are used as needed"))
    notes.append(Choice("batch", f"{config.batch_rows} rows, {config.max_sequences} sequences", "as configured"))
    return config, priced


def _context_notice(config: EngineConfig, priced: Estimate) -> tuple[Notice, ...]:
    asked = config.context_tokens
    if asked is None or asked == priced.context_tokens:
        return ()
    return (Notice("context_lowered", f"context {priced.context_tokens} tokens: {priced.context_why}"),)


def _ops(backend: Backend, config: EngineConfig, notes: list[Choice]) -> ChosenOps:
    try:
        chosen = backend.ops(Profile(config.kernels, config.mode, config.threads))
    except ValueError as error:
        raise UsageError(f"{backend.name}: {error}") from error
    except RuntimeError as error:
        raise DeviceError(f"{backend.name}: {error}", hint="llmrun doctor says what is missing") from error
    notes.extend(chosen.choices)
    if config.mode == "fast" and not any(choice.what == "mode" for choice in chosen.choices):
        raise UsageError(f"{backend.name} does not say whether it can run in mode fast", hint="use mode exact")
    return chosen


def make_rules(files: ModelFiles, config: EngineConfig, source: WeightSource) -> tuple[TextRules, list[Choice]]:
    from strata_engine.text.rules import load_text_rules

    template, origin = _template(files, config)
    rules = load_text_rules(source.metadata(), _text_directory(files), template)
    if rules.tokenizer is None:
        return rules, [Choice("tokenizer", "none", "the model's files hold none: token-id prompts only")]
    where = "the GGUF file" if source.kind == "gguf" else "tokenizer.json"
    tokens = Choice("tokenizer", f"{rules.tokenizer.vocab_size} tokens", where)
    replaced = any(notice.code == "template-default" for notice in rules.notices)
    why = "built in: the model brings none" if replaced else origin
    return rules, [tokens, Choice("chat template", f"{len(rules.template_source)} characters", why)]


def _template(files: ModelFiles, config: EngineConfig) -> tuple[str | None, str]:
    """(template text or name, where it comes from): asked for, a file of the model, the catalog, the model itself."""
    if config.chat_template is not None:
        return config.chat_template, "asked for"
    own = files.role("template")
    if own:
        return own[0].path.read_text(encoding="utf-8"), own[0].name
    named = files.chat.get("template")
    return (str(named), "the catalog") if named else (None, "the model's own")


def _text_directory(files: ModelFiles) -> Path | None:
    """Where tokenizer.json and its kin lie."""
    if files.directory is not None:
        return files.directory
    tokenizers = files.role("tokenizer")
    return tokenizers[0].path.parent if tokenizers else None


def choice_record(choice: Choice) -> dict[str, Any]:
    """A choice as plain JSON data."""
    rejected = [{"name": name, "why": why} for name, why in choice.rejected]
    return {"what": choice.what, "taken": choice.taken, "why": choice.why, "rejected": rejected}


BackendFactory = Callable[[str], Backend]  # device name -> backend
