"""Build hook: compiles the CPU kernels with CMake and hands the library to the wheel.

Without a compiler the wheel is pure Python and the torch reference runs (`llmrun doctor` says so). Set
LLMRUN_REQUIRE_KERNELS=1 to make a failed kernel build fail the install, as CI does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARY = {"win32": "llmrun_cpu.dll", "darwin": "libllmrun_cpu.dylib"}


class CMakeHook(BuildHookInterface):
    """Runs `cmake` in build/cpu and installs the library beside strata_kernels/native.py."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build for wheels, editable ones included."""
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        target = root / "kernels" / "strata_kernels" / "lib"
        try:
            self._build(root, target)
        except (OSError, subprocess.CalledProcessError) as error:
            if os.environ.get("LLMRUN_REQUIRE_KERNELS"):
                raise
            self.app.display_warning(f"CPU kernels not built ({error}); llmrun will use the slower torch reference")
            return
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
        for library in target.iterdir():
            build_data["force_include"][str(library)] = f"strata_kernels/lib/{library.name}"

    def _build(self, root: Path, target: Path) -> None:
        cmake = shutil.which("cmake")
        if cmake is None:
            raise FileNotFoundError("cmake")
        build = root / "build" / "cpu"
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        command = [cmake, "-S", str(root), "-B", str(build), *generator, "-DCMAKE_BUILD_TYPE=Release"]
        try:
            subprocess.run(command, check=True)
        except subprocess.CalledProcessError:
            shutil.rmtree(build, ignore_errors=True)  # a cache made by another cmake or in another folder
            subprocess.run(command, check=True)
        subprocess.run([cmake, "--build", str(build), "--parallel", str(os.cpu_count() or 1)], check=True)
        subprocess.run([cmake, "--install", str(build), "--prefix", str(target)], check=True)
