"""Body fields that chat and completions share -> SamplingParams fields the client named."""

from __future__ import annotations

from typing import Any

from strata_cli.server.errors import BadField, unsupported
from strata_cli.server.fields import Fields

MOST_CHOICES, MOST_ALTERNATIVES = 128, 20
_MOST_STOPS, _MOST_TOKENS = 64, 2**31 - 1
# Labels for the client's own use; nothing an answer depends on.
_LABELS = (
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "cache_prompt",
    "id_slot",
)
_NUMBERS = {
    "temperature": ("temperature", 0.0, 100.0),
    "top_p": ("top_p", 0.0, 1.0),
    "min_p": ("min_p", 0.0, 1.0),
    "presence_penalty": ("presence_penalty", -2.0, 2.0),
    "frequency_penalty": ("frequency_penalty", -2.0, 2.0),
    "repeat_penalty": ("repeat_penalty", 0.01, 100.0),
    "repetition_penalty": ("repeat_penalty", 0.01, 100.0),
}
_NOT_YET = ("grammar", "json_schema", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "guidance",
            "structured_outputs", "regex", "ebnf", "lora", "prompt_logprobs", "kv_transfer_params")  # fmt: skip
_NOT_YET_BUT = {
    "typical_p": (1, 1.0), "xtc_probability": (0, 0.0), "dry_multiplier": (0, 0.0), "mirostat": (0, 0.0),
    "dynatemp_range": (0, 0.0), "use_beam_search": (False,), "length_penalty": (1, 1.0), "priority": (0,),
    "skip_special_tokens": (True,), "spaces_between_special_tokens": (True,), "best_of": (1,), "n_probs": (0,),
}  # fmt: skip


def read_sampling(fields: Fields) -> dict[str, Any]:
    """SamplingParams fields named by the body; stop texts without empty ones."""
    given: dict[str, Any] = {}
    for name, (target, low, high) in _NUMBERS.items():
        _put(given, target, fields.number(name, low, high))
    _put(given, "max_tokens", _max_tokens(fields))
    _put(given, "min_tokens", fields.integer("min_tokens", 0, _MOST_TOKENS))
    top_k = fields.integer("top_k", -1, _MOST_TOKENS)
    _put(given, "top_k", None if top_k is None else max(top_k, 0))
    _put(given, "penalty_last_n", fields.integer("repeat_last_n", -1, _MOST_TOKENS))
    seed = fields.integer("seed", -(2**63), 2**64 - 1)
    _put(given, "seed", None if seed in (None, -1) else seed & (2**63 - 1))
    _put(given, "stop", _stops(fields))
    _put(given, "stop_token_ids", _ids(fields, "stop_token_ids"))
    _put(given, "ignore_eos", fields.boolean("ignore_eos"))
    _put(given, "include_stop", fields.boolean("include_stop_str_in_output"))
    _put(given, "logit_bias", _logit_bias(fields))
    _put(given, "speculate", fields.boolean("speculate"))
    return given


def refuse_unsupported(fields: Fields) -> None:
    """Known fields that this server cannot do yet: 400, unless their value asks for nothing."""
    fields.skip(*_LABELS)
    for name in _NOT_YET:
        if fields.value(name) not in (None, "", {}, []):
            raise unsupported(fields.path(name), "this field")
    for name, neutral in _NOT_YET_BUT.items():
        fields.only(name, *neutral)


def read_choices(fields: Fields) -> int:
    """`n`: 1 when absent."""
    return fields.integer("n", 1, MOST_CHOICES) or 1


def read_usage_wish(fields: Fields) -> bool:
    """`stream_options.include_usage`."""
    options = fields.object("stream_options")
    return bool(options and Fields(options, "stream_options").boolean("include_usage"))


def _put(given: dict[str, Any], name: str, value: Any) -> None:
    if value is not None:
        given[name] = value


def _max_tokens(fields: Fields) -> int | None:
    """max_completion_tokens wins; -1 means no limit, as in llama.cpp."""
    old = fields.integer("max_tokens", -1, 2**63)
    new = fields.integer("max_completion_tokens", -1, 2**63)
    name, value = ("max_tokens", old) if new is None else ("max_completion_tokens", new)
    if value == 0:
        raise BadField(name, "must be at least 1")
    return None if value is None or value < 0 else min(value, _MOST_TOKENS)


def _stops(fields: Fields) -> tuple[str, ...] | None:
    value = fields.value("stop")
    if value is None:
        return None
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise BadField("stop", "must be a string or a list of strings", "invalid_type")
    if len(texts) > _MOST_STOPS:
        raise BadField("stop", f"{len(texts)} entries, {_MOST_STOPS} at most")
    return tuple(dict.fromkeys(text for text in texts if text))


def _ids(fields: Fields, name: str) -> tuple[int, ...] | None:
    value = fields.items(name)
    if value is None:
        return None
    if not all(isinstance(number, int) and not isinstance(number, bool) for number in value):
        raise BadField(fields.path(name), "must be a list of token ids", "invalid_type")
    return tuple(value)


def _logit_bias(fields: Fields) -> tuple[tuple[int, float], ...] | None:
    """Object {"id": bias} or list of [id, bias]; biases are clamped to -100..100."""
    value = fields.value("logit_bias")
    if value is None:
        return None
    pairs = list(value.items()) if isinstance(value, dict) else value
    if not isinstance(pairs, list):
        raise BadField("logit_bias", "must be an object or a list of pairs", "invalid_type")
    return tuple(_bias(pair) for pair in pairs)


def _bias(pair: Any) -> tuple[int, float]:
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise BadField("logit_bias", "each entry must be a pair of token id and bias", "invalid_type")
    key, bias = pair
    text = str(key) if isinstance(key, int) and not isinstance(key, bool) else key
    if not isinstance(text, str) or not (text.isascii() and text.isdigit() and len(text) < 12):
        raise BadField("logit_bias", f"{str(key)[:40]!r} is not a token id")
    if isinstance(bias, bool) or not isinstance(bias, int | float):
        raise BadField("logit_bias", f"the bias of token {text} must be a number", "invalid_type")
    return int(text), float(max(-100, min(100, bias)))
