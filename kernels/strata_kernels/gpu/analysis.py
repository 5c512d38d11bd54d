"""What a code object costs: registers, spills, local memory, matrix instructions, and vector instructions by loop.

Read from the assembly text (AMD) or by the tools in the compiler's package (CUDA). No device is needed, so the figures
are gates of the tests (limits.py) and stand in docs/gpu-kernels.md.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from strata_kernels.gpu.flow import Instruction, loops

# name of ours -> what the compiler's own summary calls it
_AMD_FACTS = {
    "vgprs": ".vgpr_count",
    "sgprs": ".sgpr_count",
    "spills": ".vgpr_spill_count",
    "scalar_spills": ".sgpr_spill_count",
    "scratch_bytes": ".private_segment_fixed_size",
}
_LABEL = re.compile(r"^(\.LBB\w+):")
_AMD_BRANCH = re.compile(r"^s_c?branch\w*\s+(\.\w+)")
_AMD_STEP = re.compile(r"^(?:v|s|ds|global|buffer|flat|scratch)_\w+")
_AMD_MATRIX = ("v_wmma", "v_mfma", "v_swmmac")
_SASS_LINE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);")
_SASS_MATRIX = ("HMMA", "IMMA", "HGMMA", "IGMMA", "QGMMA")
# of other units than the one for vectors of numbers
_SASS_OTHER = (
    "LD", "ST", "BAR", "BRA", "EXIT", "RET", "NOP", "ATOM", "RED", "MEMBAR", "DEPBAR", "WARPSYNC", "BSYNC", "BSSY",
    "U", "S2", "CS2", "R2U", "CALL", "ERRBAR", "CCTL", "SYNCS", "WARPGROUP",
)  # fmt: skip


def figures_of(backend: str, text: str, code: bytes, with_loops: bool = True) -> dict[str, Any]:
    """Figures of a code object. "loops": [vector instructions, matrix instructions] of each loop, inner ones apart.

    `text`: assembly, of AMD. `with_loops`: what takes a disassembler too (CUDA: most of a second). An unknown backend
    gives the size alone.
    """
    size = {"code_bytes": len(code)}
    if backend == "hip":
        return size | amd_figures(text)
    if backend == "cuda":
        return size | cuda_figures(code, with_loops)
    return size


def amd_figures(text: str) -> dict[str, Any]:
    """Of AMD's assembly text as the compiler wrote it."""
    facts: dict[str, Any] = {ours: _number(text, theirs) for ours, theirs in _AMD_FACTS.items()}
    program = _amd_program(text)
    facts["matrix"] = sum(step.name.startswith(_AMD_MATRIX) for step in program)
    facts["dots"] = sum(step.name.startswith(("v_dot", "v_dual_dot")) for step in program)
    facts["loops"] = _counted(program, _is_amd_vector, _AMD_MATRIX)
    return facts


def _number(text: str, name: str) -> int:
    found = re.search(rf"^\s*{re.escape(name)}:\s*(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else 0


def _amd_program(text: str) -> list[Instruction]:
    """Two operations that are issued together count as two: lanes do the work of both."""
    lines: list[str] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        line = line.partition(";")[0].strip()
        if label := _LABEL.match(line):
            labels[label[1]] = len(lines)
        elif _AMD_STEP.match(line):
            lines += [part.strip() for part in line.split("::")]
    program: list[Instruction] = []
    for line in lines:
        branch = _AMD_BRANCH.match(line)
        ends = line.startswith(("s_endpgm", "s_branch", "s_setpc"))
        program.append(Instruction(line.split()[0], labels.get(branch[1], -1) if branch else -1, ends))
    return program


def _is_amd_vector(name: str) -> bool:
    return name.startswith("v_") and not name.startswith((*_AMD_MATRIX, "v_nop"))


def _counted(
    program: Sequence[Instruction], is_vector: Callable[[str], bool], matrix: tuple[str, ...]
) -> list[list[int]]:
    found: list[list[int]] = []
    for body in loops(program):
        names = [program[at].name for at in body]
        found.append([sum(map(is_vector, names)), sum(name.startswith(matrix) for name in names)])
    return found


def cuda_figures(code: bytes, with_loops: bool) -> dict[str, Any]:
    """Of a cubin, by cuobjdump of the compiler's package. Raises RuntimeError when it does not run."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(code)
        text = _cuobjdump("-res-usage", *(["-sass"] if with_loops else []), str(path))
    facts: dict[str, Any] = {
        ours: int(found[1]) if (found := re.search(rf"\b{theirs}:(\d+)", text)) else 0
        for ours, theirs in (("vgprs", "REG"), ("scratch_bytes", "STACK"), ("local_bytes", "LOCAL"))
    }
    if not with_loops:
        return facts
    program = _sass_program(text)
    facts["spills"] = sum(step.name.startswith(("LDL", "STL")) for step in program)
    facts["matrix"] = sum(step.name.startswith(_SASS_MATRIX) for step in program)
    facts["loops"] = _counted(program, _is_sass_vector, _SASS_MATRIX)
    return facts


def _sass_program(text: str) -> list[Instruction]:
    steps = _SASS_LINE.findall(text)
    places = {int(at, 16): index for index, (at, _, _, _) in enumerate(steps)}
    program: list[Instruction] = []
    for _, guard, name, rest in steps:
        goal = re.search(r"\b0x([0-9a-f]+)\s*$", rest) if name.startswith("BRA") else None
        ends = not guard and name.startswith(("BRA", "EXIT", "RET"))
        program.append(Instruction(name, places.get(int(goal[1], 16), -1) if goal else -1, ends))
    return program


def _is_sass_vector(name: str) -> bool:
    return not name.startswith((*_SASS_OTHER, *_SASS_MATRIX))


def _cuobjdump(*arguments: str) -> str:
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    done = subprocess.run([tool, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"cuobjdump: {done.stderr.strip()[:500]}")
    return done.stdout
