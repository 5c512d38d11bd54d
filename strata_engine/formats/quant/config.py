"""quantization_config -> the scheme of a checkpoint. A method that is recognised but not run is refused by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from strata_engine.formats.quant.awq import read_awq
from strata_engine.formats.quant.compressed import read_compressed
from strata_engine.formats.quant.fp8 import read_fp8
from strata_engine.formats.quant.gptq import read_gptq
from strata_engine.formats.quant.layout import Scheme
from strata_engine.formats.quant.qqq import read_qqq
from strata_engine.formats.quant.settings import malformed, refuse, section, text

_READERS: dict[str, Callable[[Mapping[str, Any]], Scheme]] = {
    "gptq": read_gptq,
    "awq": read_awq,
    "qqq": read_qqq,
    "compressed-tensors": read_compressed,
    "fp8": read_fp8,
}


def read_config(config: Mapping[str, Any]) -> Scheme:
    """The scheme that a quantization_config describes.

    Raises UsageError for a method or variant that we do not run, naming it; CorruptFile when it is malformed.
    """
    method = text(config, ("quant_method",), "").lower()
    if not method:
        raise malformed("it names no quant_method")
    reader = _READERS.get(method)
    if reader is None:
        raise refuse(repr(method))
    return reader(config)


def scheme_of(metadata: Mapping[str, Any]) -> Scheme | None:
    """The scheme of a safetensors checkpoint by its side files (WeightSource.metadata); None: not quantised.

    Models with several towers keep it in the config of one; old GPTQ and AWQ files keep it beside the config.
    """
    config = section(metadata, "config")
    places = (config, *(value for value in config.values() if isinstance(value, dict)))
    for place in places:
        for key in ("quantization_config", "compression_config"):
            if place.get(key):
                return read_config(section(place, key))
    for key, method in (("quantize_config", "gptq"), ("quant_config", "awq")):
        if metadata.get(key):
            return read_config({"quant_method": method, **section(metadata, key)})
    return None
