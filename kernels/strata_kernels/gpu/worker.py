"""The process that compiles, started by compile.py: JSON lines in, JSON lines out, until input ends.

A request: {"variant": {...}, "target": {...}, "loops": false}. An answer: {"ready": toolchain} once at the start, then
for each request {"symbol", "shared", "threads", "code" (base64), "figures"} or {"error": text}. It is a process of its
own because a compiler may crash, because several run side by side, and because triton that was imported to interpret
cannot compile. It imports no torch.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from importlib import import_module
from typing import Any

from strata_kernels.gpu.analysis import figures_of
from strata_kernels.gpu.launch import Variant
from strata_kernels.gpu.table import find_kernel
from strata_kernels.gpu.targets import Target


def compile_variant(variant: Variant, target: Target, loops: bool = False) -> dict[str, Any]:
    """One variant for one device; `loops` as in figures_of.

    Raises whatever the compiler raises, ValueError where the launcher could not run the result.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = find_kernel(variant.kernel)
    types, constants, aligned = bind(kernel, variant)
    attrs: Any = {(at,): [["tt.divisibility", 16]] for at in aligned}
    if triton.__version__.startswith("3.2."):
        types, attrs = _for_3_2(types, aligned)
    source = ASTSource(kernel, types, constants, attrs)
    options: dict[str, Any] = {"num_warps": variant.warps, "num_stages": variant.stages, "enable_fp_fusion": True}
    made = triton.compile(source, target=GPUTarget(target.backend, target.capability, target.lanes), options=options)
    facts = made.metadata
    if getattr(facts, "global_scratch_size", 0) or getattr(facts, "profile_scratch_size", 0):
        raise ValueError("it needs scratch memory of the device, which the launcher does not give")
    if facts.shared > target.shared_limit:
        raise ValueError(f"it needs {facts.shared} bytes of local memory, {target.arch} has {target.shared_limit}")
    code = made.asm[BINARIES[target.backend]]
    text = made.asm["amdgcn"] if target.backend == "hip" else ""
    return {
        "symbol": facts.name,
        "shared": facts.shared,
        "threads": facts.num_warps * target.lanes,
        "code": base64.b64encode(code).decode(),
        "figures": figures_of(target.backend, text, code, loops),
    }


BINARIES = {"hip": "hsaco", "cuda": "cubin", "musa": "mubin"}


def bind(kernel: Any, variant: Variant) -> tuple[dict[str, str], dict[str, Any], list[int]]:
    """(type of each parameter by name, constants by name, places of pointers that are multiples of 16 bytes).

    Raises ValueError where a variant and the kernel's parameters do not fit.
    """
    given, types = dict(variant.constants), list(variant.types)
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    aligned: list[int] = []
    for at, parameter in enumerate(kernel.params):
        name = parameter.name
        if parameter.is_constexpr:
            constants[name] = given.pop(name) if name in given else parameter.default
            signature[name] = "constexpr"
            continue
        if not types:
            raise ValueError(f"{variant.key}: no value for {name}")
        kind = types.pop(0)
        signature[name] = kind.rstrip("?")
        if kind[0] == "*" and not kind.endswith("?"):
            aligned.append(at)
    if types or given:
        raise ValueError(f"{variant.key}: the kernel has no parameters for {types or list(given)}")
    return signature, constants, aligned


def _for_3_2(types: dict[str, str], aligned: list[int]) -> tuple[dict[str, str], Any]:
    """Types and attributes as the older release takes them."""
    compiler: Any = import_module("triton.backends.compiler")
    properties = {"tt.divisibility": aligned, "tt.equal_to": []}
    attrs = compiler.AttrsDescriptor.from_dict({"arg_properties": properties, "cls": "AttrsDescriptor"})
    return {name: kind for name, kind in types.items() if kind != "constexpr"}, attrs


def toolchain() -> str:
    """What compiles here."""
    import triton

    return f"triton {triton.__version__}"


def main(cache: str) -> None:
    """Answer until there are no more requests. What a compiler prints goes to stderr, never between the answers.

    `cache`: where triton keeps its own files.
    """
    _surroundings(cache)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    _say(answers, {"ready": toolchain()})
    for line in sys.stdin:
        request = json.loads(line)
        asked, target = request["variant"], Target(**request["target"])
        variant = Variant(
            asked["kernel"],
            tuple(asked["types"]),
            tuple((n, v) for n, v in asked["constants"]),
            asked["warps"],
            asked["stages"],
        )
        try:
            answer = compile_variant(variant, target, request["loops"])
        except Exception as error:  # noqa: BLE001 - a compiler raises anything at all; the answer tells the builder
            answer = {"error": f"{type(error).__name__}: {error}"[:4000]}
        _say(answers, answer)


def _surroundings(cache: str) -> None:
    """Settings of triton that a user has would change the result: the same sources give the same code everywhere."""
    for name in [name for name in os.environ if name.startswith(("TRITON_", "AMDGCN_"))]:
        del os.environ[name]
    os.environ |= {"TRITON_CACHE_DIR": cache, "TRITON_DEFAULT_FP_FUSION": "1", "TRITON_DISABLE_LINE_INFO": "1"}


def _say(answers: Any, what: dict[str, Any]) -> None:
    answers.write(json.dumps(what) + "\n")
    answers.flush()
