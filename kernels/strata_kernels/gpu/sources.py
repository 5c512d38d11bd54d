"""Which source texts a kernel is made of, and their hash: what says whether a compiled kernel is still the right one.

No triton is needed: the imports are read from the text. Any change of a file, comments too, makes its kernels stale.
"""

from __future__ import annotations

import ast
from hashlib import sha256
from pathlib import Path

from strata_kernels.gpu.table import KERNELS

PACKAGE = "strata_kernels.triton"
FOLDER = Path(__file__).parents[1] / "triton"


class Sources:
    """Hashes of kernels' sources, each file read once. `folder`: where the modules lie."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder
        self._texts: dict[str, str] = {}
        self._hashes: dict[str, str] = {}

    def hash_of(self, kernel: str) -> str:
        """sha256 of the kernel's module and of the modules it imports, in hexadecimal. Raises KeyError, OSError."""
        module = KERNELS[kernel]
        if module not in self._hashes:
            parts = sorted(self._closure(module))
            self._hashes[module] = sha256("\0".join(f"{p}\0{self._text(p)}" for p in parts).encode()).hexdigest()
        return self._hashes[module]

    def _text(self, module: str) -> str:
        if module not in self._texts:
            self._texts[module] = (self._folder / f"{module}.py").read_text(encoding="utf-8").replace("\r\n", "\n")
        return self._texts[module]

    def _closure(self, module: str) -> set[str]:
        found, waiting = {module}, [module]
        while waiting:
            for name in _imports(self._text(waiting.pop())):
                if name not in found and (self._folder / f"{name}.py").is_file():
                    found.add(name)
                    waiting.append(name)
        return found


def _imports(text: str) -> list[str]:
    """Modules of the package that a module imports."""
    found: list[str] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            if node.module == PACKAGE:
                found += [alias.name for alias in node.names]
            elif node.module.startswith(PACKAGE + "."):
                found.append(node.module.removeprefix(PACKAGE + "."))
        elif isinstance(node, ast.Import):
            found += [a.name.removeprefix(PACKAGE + ".") for a in node.names if a.name.startswith(PACKAGE + ".")]
    return found
