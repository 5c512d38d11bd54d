"""Flag groups shared by commands: how a model is loaded, how tokens are chosen.

A group is a frozen dataclass whose fields are typer options (None = not given). `@with_flags(Group, ...)` puts the
options of each group in place of the parameter of that type, so a command receives one checked object a group:

    @with_flags(LoadFlags, SamplingFlags)
    def run(context: typer.Context, load: LoadFlags, sampling: SamplingFlags) -> int: ...
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

import typer

from strata_cli.app import App
from strata_cli.keys import KEYS
from strata_cli.settings import Settings
from strata_cli.specflags import SpecFlags
from strata_engine.config import NO_PROJECTOR, EngineConfig, SamplingParams, kv_named
from strata_engine.errors import NotFound, UsageError
from strata_engine.paths import expand

_LOAD, _SAMPLING = "Loading", "Sampling"
_TEMPLATE_MOST_BYTES = 1 << 20


def _help(name: str) -> str:
    text = KEYS[name].meaning
    return text[0].upper() + text[1:]


def _key(name: str, *names: str, metavar: str = "N", panel: str = _LOAD) -> Any:
    key = KEYS[name]
    shown = "|".join(key.choices) if key.choices else metavar
    return typer.Option(*(names or (key.flag,)), metavar=shown, help=_help(name), rich_help_panel=panel)


def _sampling(name: str, *names: str, metavar: str = "N") -> Any:
    return _key(name, *names, metavar=metavar, panel=_SAMPLING)


def _kv_side(flag: str, side: str, types: str) -> Any:
    text = f"Type of the stored {side} alone, in place of --kv-type's"
    return typer.Option(flag, metavar=types, help=text, rich_help_panel=_LOAD)


@dataclass(frozen=True)
class LoadFlags:
    """How a model is loaded. Field names are setting names, except `ctk`, `ctv`, `chat_template`."""

    ctx: Annotated[str | None, _key("ctx", "--ctx", "-c", metavar="N|auto")] = None
    threads: Annotated[int | None, _key("threads", "--threads", "-t")] = None
    parallel: Annotated[int | None, _key("parallel")] = None
    batch: Annotated[int | None, _key("batch", "--batch", "-b")] = None
    kv_type: Annotated[str | None, _key("kv_type")] = None
    ctk: Annotated[str | None, _kv_side("--ctk", "keys", "f16|bf16|f32|int8")] = None
    ctv: Annotated[str | None, _kv_side("--ctv", "values", "f16|bf16|f32|int8|q4")] = None
    kernels: Annotated[str | None, _key("kernels")] = None
    mode: Annotated[str | None, _key("mode")] = None
    quantize_rest: Annotated[str | None, _key("quantize_rest")] = None
    gpu_layers: Annotated[str | None, _key("gpu_layers", "--gpu-layers", "-ngl", metavar="N|auto|all")] = None
    n_cpu_moe: Annotated[str | None, _key("n_cpu_moe", "--n-cpu-moe", metavar="N|auto|all")] = None
    mmproj: Annotated[
        str | None,
        typer.Option("--mmproj", metavar="FILE", help="Image projector of a GGUF model, or none: no images"),
    ] = None
    prefix_cache: Annotated[
        bool | None, typer.Option("--prefix-cache/--no-prefix-cache", help=_help("prefix_cache"), rich_help_panel=_LOAD)
    ] = None
    mmap: Annotated[bool | None, typer.Option("--mmap/--no-mmap", help=_help("mmap"))] = None
    chat_template: Annotated[
        str | None, typer.Option("--chat-template", metavar="FILE", help="Chat template in place of the model's own")
    ] = None

    def __post_init__(self) -> None:
        _check_all(self)


@dataclass(frozen=True)
class SamplingFlags:
    """How tokens are chosen and when to stop."""

    temperature: Annotated[float | None, _sampling("temperature", "--temp", "--temperature", metavar="T")] = None
    top_k: Annotated[int | None, _sampling("top_k")] = None
    top_p: Annotated[float | None, _sampling("top_p", metavar="P")] = None
    min_p: Annotated[float | None, _sampling("min_p", metavar="P")] = None
    repeat_penalty: Annotated[float | None, _sampling("repeat_penalty", metavar="X")] = None
    repeat_last_n: Annotated[int | None, _sampling("repeat_last_n")] = None
    presence_penalty: Annotated[float | None, _sampling("presence_penalty", metavar="X")] = None
    frequency_penalty: Annotated[float | None, _sampling("frequency_penalty", metavar="X")] = None
    seed: Annotated[int | None, _sampling("seed")] = None
    max_tokens: Annotated[int | None, _sampling("max_tokens", "--max-tokens", "-n")] = None
    stop: Annotated[
        list[str] | None, typer.Option("--stop", metavar="TEXT", help="Stop before this text (repeat; \\n, \\t, \\x1b)")
    ] = None
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after the model's end token")] = False
    logit_bias: Annotated[
        list[str] | None,
        typer.Option("--logit-bias", metavar="ID=X", help="Add X (-100 to 100) to a token's score (repeat)"),
    ] = None
    logprobs: Annotated[
        int | None, typer.Option("--logprobs", metavar="N", help="Give log probabilities with N alternatives (0 to 20)")
    ] = None

    def __post_init__(self) -> None:
        _check_all(self)
        if self.max_tokens == 0:
            raise UsageError("--max-tokens 0: no answer would fit", "--max-tokens 1 or more, or -1 for no limit")
        if self.logprobs is not None and not 0 <= self.logprobs <= 20:
            raise UsageError(f"--logprobs: {self.logprobs} is outside 0 to 20")
        for text in self.stop or ():
            unescape(text)
        for text in self.logit_bias or ():
            _bias(text)


def _check_all(group: LoadFlags | SamplingFlags) -> None:
    for name, value in _given(group).items():
        try:
            KEYS[name].check(value)
        except ValueError as error:
            raise UsageError(f"{KEYS[name].flag.split('/')[0]}: {error}") from error


def _given(group: Any) -> dict[str, Any]:
    pairs = ((field.name, getattr(group, field.name)) for field in dataclasses.fields(group))
    return {name: value for name, value in pairs if name in KEYS and value is not None}


def load_settings_of(app: App, load: LoadFlags) -> Settings:
    """The program's settings with these flags on top; `.origin(name)` says where each value came from."""
    return app.settings.override(_given(load))


def sampling_settings_of(app: App, sampling: SamplingFlags, model: SamplingParams | None = None) -> Settings:
    """Settings with the model's own defaults below the user's choices and these flags on top (for `/show params`)."""
    return app.settings.with_model_defaults(model).override(_given(sampling))


def to_engine_config(app: App, load: LoadFlags, spec: SpecFlags | None = None) -> EngineConfig:
    """flag > environment > config file > built-in. Raises UsageError, NotFound (template file)."""
    settings = load_settings_of(app, load)
    config = (settings if spec is None else settings.override(spec.values())).engine_config()
    if load.ctk or load.ctv:
        config = dataclasses.replace(config, kv_type=kv_named(load.ctk, load.ctv, config.kv_type))
    if load.mmproj is not None:
        config = dataclasses.replace(config, projector=_projector(load.mmproj))
    if load.chat_template is None:
        return config
    return dataclasses.replace(config, chat_template=_template_text(load.chat_template))


def to_sampling(app: App, sampling: SamplingFlags, model: SamplingParams | None = None) -> SamplingParams:
    """flag > environment > config file > `model` (LoadedModel.defaults) > built-in. Model stop texts stay in force."""
    params = sampling_settings_of(app, sampling, model).sampling(model)
    stops = (*params.stop, *(unescape(text) for text in sampling.stop or ()))
    return dataclasses.replace(
        params,
        stop=tuple(dict.fromkeys(text for text in stops if text)),
        ignore_eos=sampling.ignore_eos or params.ignore_eos,
        logit_bias=(*params.logit_bias, *(_bias(text) for text in sampling.logit_bias or ())),
        logprobs=params.logprobs if sampling.logprobs is None else sampling.logprobs,
    )


def _projector(name: str) -> str:
    if name == NO_PROJECTOR:
        return name
    path = expand(name)
    if not path.is_file():
        raise NotFound(f"--mmproj: no such file: {name}", "the path of a model's mmproj-*.gguf, or none")
    return str(path.absolute())


def _template_text(name: str) -> str:
    path = expand(name)
    if not path.is_file():
        raise NotFound(f"--chat-template: no such file: {name}", "the path of a jinja chat template")
    if path.stat().st_size > _TEMPLATE_MOST_BYTES:
        raise UsageError(f"--chat-template {name}: {path.stat().st_size} bytes is too long (1 MiB at most)")
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"--chat-template {name}: not UTF-8 text (byte {error.start})") from error


_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "e": "\x1b",
            "\\": "\\", "'": "'", '"': '"'}  # fmt: skip
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.|$)", re.DOTALL)


def unescape(text: str) -> str:
    """C escapes of a --stop text: \\n \\t \\x1b \\u00e9 ... Raises UsageError for an unknown one."""

    def one(match: re.Match[str]) -> str:
        body = match[1]
        if body in _ESCAPES:
            return _ESCAPES[body]
        code = int(body[1:], 16) if body[:1] in "xuU" and len(body) > 1 else -1
        if not 0 <= code <= 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise UsageError(f"--stop {text}: unknown escape {match[0]}", "\\\\ for one backslash")
        return chr(code)

    return _ESCAPE.sub(one, text)


def _bias(text: str) -> tuple[int, float]:
    match = re.fullmatch(r"([0-9]{1,10})(?:=([+-]?[0-9.]+(?:e[+-]?[0-9]+)?)|([+-][0-9.]+))", text)
    try:
        value = float(match[2] or match[3]) if match else None
    except ValueError:
        value = None
    if match is None or value is None:
        raise UsageError(f"--logit-bias {text}: not ID=X", "for example --logit-bias 1234=-100")
    if not -100 <= value <= 100:
        raise UsageError(f"--logit-bias {text}: {value:g} is outside -100 to 100")
    return int(match[1]), value


def with_flags(*groups: type[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: each parameter annotated with one of `groups` becomes that dataclass's options for typer."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        hints = get_type_hints(function, include_extras=True)
        taken = {name: hint for name, hint in hints.items() if hint in groups}
        missing = set(groups) - set(taken.values())
        if missing:
            raise TypeError(f"{function.__name__} has no parameter for {sorted(g.__name__ for g in missing)}")
        signature, fields = _flat_signature(function, hints, taken)

        def command(**values: Any) -> Any:
            built = {name: group(**{f: values.pop(f) for f in fields[name]}) for name, group in taken.items()}
            return function(**values, **built)

        command.__name__, command.__doc__, command.__module__ = function.__name__, function.__doc__, function.__module__
        command.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        command.__signature__ = signature  # inspect.signature reads it
        return command

    return decorate


def _flat_signature(
    function: Callable[..., Any], hints: dict[str, Any], taken: dict[str, Any]
) -> tuple[inspect.Signature, dict[str, list[str]]]:
    parameters: list[inspect.Parameter] = []
    fields: dict[str, list[str]] = {}
    kind = inspect.Parameter.KEYWORD_ONLY
    for parameter in inspect.signature(function).parameters.values():
        name = parameter.name
        if name not in taken:
            parameters.append(parameter.replace(kind=kind, annotation=hints.get(name, Any)))
            continue
        group = taken[name]
        group_hints = get_type_hints(group, include_extras=True)
        fields[name] = [field.name for field in dataclasses.fields(group)]
        for field in dataclasses.fields(group):
            default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
            parameters.append(inspect.Parameter(field.name, kind, default=default, annotation=group_hints[field.name]))
    names = [p.name for p in parameters]
    if len(set(names)) != len(names):
        raise TypeError(
            f"{function.__name__}: the same option twice: {sorted({n for n in names if names.count(n) > 1})}"
        )
    return inspect.Signature(parameters), fields
