"""Checks of the native CPU library: is it there, does it match this program, does it compute what torch computes."""

from __future__ import annotations

import ctypes
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from strata_engine.doctor.check import FAIL, OK, WARN, Check

_REBUILD = "install a C++ compiler, then install llmrun again (pip install --force-reinstall --no-deps)"


@dataclass(frozen=True)
class KernelState:
    """What is known without torch. `build`: the fastest set of kernels this processor can run."""

    library: Path | None
    abi: int | None = None
    build: str = ""
    fault: str = ""

    @property
    def text(self) -> str:
        """One line for people."""
        if self.library is None:
            return "not built; the slower torch operations are used"
        if self.fault:
            return f"{self.library.name} cannot be used: {self.fault}"
        return f"{self.library.name}, ABI {self.abi}, {self.build} kernels"


def library_file() -> Path | None:
    """The native library beside strata_kernels, None when it was not built."""
    spec = importlib.util.find_spec("strata_kernels")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    found = [f for folder in folders for f in sorted((Path(folder) / "lib").glob("*llmrun_cpu.*"))]
    return found[0] if found else None


def state() -> KernelState:
    """Look at the library through its C interface."""
    file = library_file()
    if file is None:
        return KernelState(None)
    try:
        library = ctypes.CDLL(str(file))
        abi = int(library.llmrun_abi())
        library.llmrun_builds.restype = library.llmrun_build_refused.restype = ctypes.c_char_p
        builds = [name for name in (library.llmrun_builds() or b"").split(b",") if name]
        usable = [name.decode() for name in builds if not library.llmrun_build_refused(name)]
    except (OSError, AttributeError) as error:
        return KernelState(file, fault=str(error))
    return KernelState(file, abi, usable[-1] if usable else "", "" if usable else "no build fits this processor")


def check_all() -> list[Check]:
    """The library, then a small computation with it when it can be used."""
    found = state()
    if found.library is None:
        return [Check("kernels", WARN, found.text, _REBUILD, device=True)]
    if found.fault:
        return [Check("kernels", FAIL, found.text, _REBUILD, device=True)]
    return [Check("kernels", OK, found.text)]
