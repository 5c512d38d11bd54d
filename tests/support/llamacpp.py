"""llama.cpp's prebuilt library as a second oracle: logits of a GGUF file. Optional: LLAMACPP_LIB names its directory.

Parameter structs travel by value; only the few fields that are changed have to be known. The offsets are those of
libllama 0.5.0, so another version is refused rather than fed with nonsense.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

VERSION = "libllama.v0.5.0.so"
_CONTEXT, _BATCH, _UBATCH, _FLASH, _KEYS, _VALUES = 0, 4, 8, 52, 104, 108  # byte offsets of context parameters
_F32 = 0


def library_directory() -> Path | None:
    """Where the library lies, if it is there in the version that we know."""
    named = os.environ.get("LLAMACPP_LIB")
    directory = Path(named) if named else None
    return directory if directory and (directory / VERSION).exists() else None


class _Parameters(ctypes.Structure):
    _fields_ = [("raw", ctypes.c_ubyte * 512)]  # larger than any of the structs, which go through memory

    def put(self, offset: int, value: int) -> None:
        """Set a 32-bit field."""
        self.raw[offset : offset + 4] = list(value.to_bytes(4, "little"))


class _Rows(ctypes.Structure):
    _fields_ = [("count", ctypes.c_int32), *((name, ctypes.c_void_p) for name in "abcdef")]


class LlamaCpp:
    """The library, loaded once. F32 cache, no flash attention, one thread."""

    def __init__(self, directory: Path) -> None:
        ctypes.CDLL(str(directory / "libggml-base.so"), ctypes.RTLD_GLOBAL)
        ggml = ctypes.CDLL(str(next(directory.glob("libggml.v*.so"))), ctypes.RTLD_GLOBAL)
        self._llama = ctypes.CDLL(str(directory / VERSION), ctypes.RTLD_GLOBAL)
        self._silence = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
        pointer = ctypes.c_void_p
        for name, result, arguments in (
            ("llama_model_default_params", _Parameters, []),
            ("llama_context_default_params", _Parameters, []),
            ("llama_model_load_from_file", pointer, [ctypes.c_char_p, _Parameters]),
            ("llama_init_from_model", pointer, [pointer, _Parameters]),
            ("llama_set_n_threads", None, [pointer, ctypes.c_int32, ctypes.c_int32]),
            ("llama_batch_get_one", _Rows, [pointer, ctypes.c_int32]),
            ("llama_decode", ctypes.c_int32, [pointer, _Rows]),
            ("llama_get_logits_ith", ctypes.POINTER(ctypes.c_float), [pointer, ctypes.c_int32]),
            ("llama_free", None, [pointer]),
            ("llama_model_free", None, [pointer]),
        ):
            function = getattr(self._llama, name)
            function.restype, function.argtypes = result, arguments
        self._llama.llama_log_set(self._silence, None)
        ggml.ggml_backend_load_all_from_path.argtypes = [ctypes.c_char_p]
        ggml.ggml_backend_load_all_from_path(os.fsencode(directory))
        self._llama.llama_backend_init()

    def logits(self, path: Path, ids: Sequence[int], prompt: int, vocabulary: int) -> np.ndarray:
        """f32 [len(ids) - prompt + 1, vocabulary]: after the first `prompt` ids at once, then each further one."""
        llama = self._llama
        model = llama.llama_model_load_from_file(os.fsencode(path), llama.llama_model_default_params())
        assert model, f"llama.cpp does not load {path}"
        wanted = llama.llama_context_default_params()
        for offset, value in (
            (_CONTEXT, 256),
            (_BATCH, 256),
            (_UBATCH, 256),
            (_FLASH, 0),
            (_KEYS, _F32),
            (_VALUES, _F32),
        ):
            wanted.put(offset, value)
        context = llama.llama_init_from_model(model, wanted)
        assert context, f"llama.cpp makes no context for {path}"
        try:
            llama.llama_set_n_threads(context, 1, 1)
            pieces = [list(ids[:prompt]), *([token] for token in ids[prompt:])]
            return np.stack([self._feed(context, piece, vocabulary) for piece in pieces])
        finally:
            llama.llama_free(context)
            llama.llama_model_free(model)

    def _feed(self, context: int, ids: list[int], vocabulary: int) -> np.ndarray:
        tokens = (ctypes.c_int32 * len(ids))(*ids)
        rows = self._llama.llama_batch_get_one(ctypes.cast(tokens, ctypes.c_void_p), len(ids))
        assert self._llama.llama_decode(context, rows) == 0
        last = self._llama.llama_get_logits_ith(context, -1)
        return np.ctypeslib.as_array(last, (vocabulary,)).copy()
