"""Every setting: name, type, limits, meaning, default. One table for flags, environment, config file and docs.

Data and value checks only; where a value comes from is settings.py's matter.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from strata_backends.names import MEANING, parse_device
from strata_engine.config import KV_TYPES, SPEC_METHODS

AUTO = "auto"


@dataclass(frozen=True)
class Key:
    """One setting. `kind`: int | float | bool | text | tokens (a count, or auto)
    | layers (a count, auto or all) | device. Limits are inclusive."""

    name: str
    kind: str
    meaning: str
    default: Any
    env: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    secret: bool = False

    @property
    def flag(self) -> str:
        """The long flag of this name."""
        return _FLAGS.get(self.name, "--" + self.name.replace("_", "-"))

    def check(self, value: Any) -> Any:
        """The value in its final type. Raises ValueError with what is allowed."""
        value = _typed(self, value)
        if self.kind == "device":
            parse_device(value)
        if self.choices and value not in self.choices:
            raise ValueError(f"{value!r} is not one of {', '.join(self.choices)}")
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            _in_range(self, value)
        return value

    def parse(self, text: str) -> Any:
        """The value of a text (environment, `config set`). Raises ValueError with what is allowed."""
        return self.check(_READERS[self.kind](text.strip()))


def _typed(key: Key, value: Any) -> Any:
    if key.kind == "float" and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if key.kind in ("tokens", "layers") and isinstance(value, str):
        return _READERS[key.kind](value)
    wanted = {"int": int, "tokens": int, "layers": int, "float": float, "bool": bool}.get(key.kind, str)
    if type(value) is not wanted:
        raise ValueError(f"{value!r} is not {_KINDS[key.kind]}")
    return value


def _in_range(key: Key, value: float) -> None:
    low, high = key.low, key.high
    if math.isfinite(value) and (low is None or value >= low) and (high is None or value <= high):
        return
    raise ValueError(f"{value} is outside {_bound(low)} to {_bound(high)}")


def _bound(limit: float | None) -> str:
    return "any" if limit is None else str(limit)


def _int(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", text):
        raise ValueError(f"{text!r} is not {_KINDS['int']}")
    return int(text)


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not {_KINDS['float']}") from error


def _bool(text: str) -> bool:
    lowered = text.lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("0", "false", "no", "off"):
        return False
    raise ValueError(f"{text!r} is not {_KINDS['bool']}")


def _tokens(text: str) -> int | str:
    if text.lower() in (AUTO, "max"):
        return AUTO
    match = re.fullmatch(r"([0-9]{1,12})([kK]?)", text)
    if not match:
        raise ValueError(f"{text!r} is not {_KINDS['tokens']}")
    return int(match[1]) * (1024 if match[2] else 1)


def _layers(text: str) -> int | str:
    if text.lower() == AUTO:
        return AUTO
    if text.lower() == "all":
        return ALL_LAYERS
    if not re.fullmatch("[0-9]{1,5}", text):
        raise ValueError(f"{text!r} is not {_KINDS['layers']}")
    return int(text)


ALL_LAYERS = 99999
_READERS = {
    "layers": _layers,
    "int": _int,
    "float": _float,
    "bool": _bool,
    "tokens": _tokens,
    "text": str,
    "device": str,
}
_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "text": "a text", "device": "a text",
          "tokens": "a number of tokens (8192, 8k) or auto", "layers": "a number of layers, auto or all"}  # fmt: skip
_FLAGS = {
    "temperature": "--temp",
    "mmap": "--mmap/--no-mmap",
    "prefix_cache": "--prefix-cache/--no-prefix-cache",
    "history": "--no-history",
}

LOAD_KEYS: tuple[Key, ...] = (
    Key("ctx", "tokens", "longest conversation in tokens; auto = the model's own limit, as far as memory allows", AUTO,
        "LLMRUN_CTX", low=16, high=2**24),
    Key("threads", "int", "CPU threads; 0 = one per physical core", 0, "LLMRUN_THREADS", low=0, high=1024),
    Key("parallel", "int", "sequences in one batch; more wait", 16, "LLMRUN_PARALLEL", low=1, high=1024),
    Key("batch", "int", "most tokens in one prompt step", 512, "LLMRUN_BATCH", low=1, high=65536),
    Key("kv_type", "text", "type of the stored keys and values, keys/values where they differ", "f16", "LLMRUN_KV_TYPE",
        choices=tuple(KV_TYPES)),
    Key("kernels", "text", "operations: auto, native, or the plain reference", "auto", "LLMRUN_KERNELS",
        choices=("auto", "native", "reference")),
    Key("mode", "text", "arithmetic: exact, or fast (8-bit activations: quicker prompts, less close to the model)",
        "exact", "LLMRUN_MODE", choices=("exact", "fast")),
    Key("quantize_rest", "text", "re-quantise matrices that a checkpoint left in floats", "none",
        "LLMRUN_QUANTIZE_REST", choices=("none", "int8", "int4")),
    Key("prefix_cache", "bool", "keep what was read and share it with prompts that begin alike", True,
        "LLMRUN_PREFIX_CACHE"),
    Key("mmap", "bool", "map model files into memory, false = read them", True, "LLMRUN_MMAP"),
    Key("gpu_layers", "layers", "layers on the GPU, counted from the last; auto = as many as fit", AUTO,
        "LLMRUN_GPU_LAYERS"),
    Key("n_cpu_moe", "layers", "of these the first N keep their experts in RAM; auto = as few as fit", AUTO,
        "LLMRUN_N_CPU_MOE"),
    Key("device", "device", f"device: {MEANING}", AUTO, "LLMRUN_DEVICE"),
)  # fmt: skip

SAMPLING_KEYS: tuple[Key, ...] = (
    Key("temperature", "float", "randomness; 0 = always the likeliest token", 0.8, low=0, high=100),
    Key("top_k", "int", "keep the k likeliest tokens; 0 = all", 40, low=0, high=2**31 - 1),
    Key("top_p", "float", "keep the likeliest tokens up to this share; 1 = all", 0.95, low=0, high=1),
    Key("min_p", "float", "drop tokens below this share of the likeliest; 0 = none", 0.05, low=0, high=1),
    Key("repeat_penalty", "float", "divide scores of repeated tokens; 1 = off", 1.0, low=0.01, high=100),
    Key("repeat_last_n", "int", "how far back repeats are looked for; -1 = whole context", 64, low=-1, high=2**31 - 1),
    Key("presence_penalty", "float", "lower tokens already generated; 0 = off", 0.0, low=-2, high=2),
    Key("frequency_penalty", "float", "lower tokens by how often they were generated; 0 = off", 0.0, low=-2, high=2),
    Key("seed", "int", "fixed seed; -1 = a new one each time", -1, low=-1, high=2**63 - 1),
    Key("max_tokens", "int", "longest answer in tokens; -1 = until the end or a full context", -1,
        low=-1, high=2**31 - 1),
)  # fmt: skip

SPEC_KEYS: tuple[Key, ...] = (
    Key("spec", "text", "speculative decoding: what drafts; auto = every drafter that is there, as far as it pays",
        "none", "LLMRUN_SPEC", choices=SPEC_METHODS),
    Key("draft", "text", "the drafter's model: path or name; empty = the one the catalog pairs with the model", "",
        "LLMRUN_DRAFT"),
    Key("spec_n_max", "int", "most drafts a step of a sequence; 0 = as deep as the drafter goes", 0,
        "LLMRUN_SPEC_N_MAX", low=0, high=64),
    Key("spec_p_min", "float", "end a chain of drafts where the drafter is less sure than this share", 0.0,
        "LLMRUN_SPEC_P_MIN", low=0, high=1),
    Key("spec_strict", "bool", "a drafter that is missing or does not fit is an error, not a warning", False,
        "LLMRUN_SPEC_STRICT"),
    Key("spec_verify", "bool", "run each answer again without drafts and say whether it is the same", False,
        "LLMRUN_SPEC_VERIFY"),
    Key("spec_adaptive", "bool", "choose the depth step by step, plain where drafts do not pay; off = always the most",
        True, "LLMRUN_SPEC_ADAPTIVE"),
)  # fmt: skip

PROGRAM_KEYS: tuple[Key, ...] = (
    Key("host", "text", "server address: host, host:port, :port, URL or [v6]:port", "127.0.0.1", "LLMRUN_HOST"),
    Key("port", "int", "server port; 0 = any free one", 8080, low=0, high=65535),
    Key("api_key", "text", "key the server asks for and the client sends", "", "LLMRUN_API_KEY", secret=True),
    Key("offline", "bool", "never use the network", False, "LLMRUN_OFFLINE"),
    Key("history", "bool", "chat keeps a history file", True),
    Key("editor", "text", "editor of `config edit`, before VISUAL and EDITOR", "", "LLMRUN_EDITOR"),
)

KEYS: dict[str, Key] = {key.name: key for key in (*LOAD_KEYS, *SPEC_KEYS, *SAMPLING_KEYS, *PROGRAM_KEYS)}
