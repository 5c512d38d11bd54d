"""Every environment variable we read: the one file that touches os.environ. Below, values arrive as dataclasses."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from strata_engine.errors import UsageError
from strata_engine.paths import Paths, expand


@dataclass(frozen=True)
class Variable:
    """One variable: name, meaning. All values are text; empty means unset."""

    name: str
    meaning: str


VARIABLES: tuple[Variable, ...] = (
    Variable("LLMRUN_HOME", "one directory that holds config, data, state and cache"),
    Variable("LLMRUN_CACHE", "cache directory"),
    Variable("LLMRUN_MODELS_DIR", "directory of downloaded models"),
    Variable("LLMRUN_MODELS", "extra models.yaml files, separated like PATH"),
    Variable("LLMRUN_CONFIG", "config file in place of the user's config.toml"),
    Variable("LLMRUN_HOST", "server address for clients and serve: host, host:port, :port, URL or [v6]:port"),
    Variable("LLMRUN_API_KEY", "key the server asks for and the client sends"),
    Variable("LLMRUN_CTX", "default context in tokens"),
    Variable("LLMRUN_THREADS", "CPU threads"),
    Variable("LLMRUN_DEVICE", "device: auto, cpu, cuda, hip or musa; hip:1 = the second card of a kind"),
    Variable("LLMRUN_PARALLEL", "sequences in one batch"),
    Variable("LLMRUN_BATCH", "most tokens in one prompt step"),
    Variable(
        "LLMRUN_KV_TYPE",
        "type of the stored keys and values: f16, bf16, f32, int8, or two such, values also q4 (int8/q4)",
    ),
    Variable("LLMRUN_KERNELS", "operations: auto, native or reference"),
    Variable("LLMRUN_MODE", "arithmetic: exact or fast"),
    Variable("LLMRUN_PREFIX_CACHE", "0 = read every prompt from its beginning"),
    Variable("LLMRUN_MMAP", "0 = read model files in place of mapping them"),
    Variable("LLMRUN_QUANTIZE_REST", "none, int8 or int4: re-quantise what a checkpoint left in floats"),
    Variable("LLMRUN_GPU_LAYERS", "layers on the GPU, counted from the last: a number, auto or all"),
    Variable("LLMRUN_N_CPU_MOE", "of these the first N keep their experts in RAM: a number, auto or all"),
    Variable("LLMRUN_SPEC", "speculative decoding: none, auto, mtp, dflash, eagle3, draft, ngram or suffix"),
    Variable("LLMRUN_DRAFT", "the drafter's model: path or name"),
    Variable("LLMRUN_SPEC_N_MAX", "most drafts a step; 0 = as deep as the drafter goes"),
    Variable("LLMRUN_SPEC_P_MIN", "end a chain of drafts where the drafter is less sure than this share"),
    Variable("LLMRUN_SPEC_STRICT", "1 = a drafter that is missing or does not fit is an error"),
    Variable("LLMRUN_SPEC_VERIFY", "1 = run each answer again without drafts and compare"),
    Variable("LLMRUN_SPEC_ADAPTIVE", "0 = always the most drafts, also where they do not pay"),
    Variable("LLMRUN_OFFLINE", "1 = never use the network"),
    Variable("LLMRUN_DEBUG", "1 = tracebacks and debug log"),
    Variable("LLMRUN_EDITOR", "editor of config edit, before VISUAL and EDITOR"),
    Variable("LLMRUN_NOHISTORY", "1 = chat keeps no history file"),
    Variable("HF_TOKEN", "Hugging Face token"),
    Variable("HF_TOKEN_PATH", "file that holds the Hugging Face token"),
    Variable("HF_HOME", "Hugging Face home, read for its token and cache"),
    Variable("HF_HUB_CACHE", "Hugging Face cache, read only"),
    Variable("HF_ENDPOINT", "Hugging Face mirror"),
    Variable("HF_HUB_OFFLINE", "1 = as LLMRUN_OFFLINE"),
    Variable("TRANSFORMERS_OFFLINE", "1 = as LLMRUN_OFFLINE"),
    Variable("MODELSCOPE_ENDPOINT", "ModelScope mirror"),
    Variable("MODELSCOPE_API_TOKEN", "ModelScope token"),
    Variable("REQUESTS_CA_BUNDLE", "certificate file to trust besides the system's (SSL_CERT_FILE counts too)"),
    Variable("NO_COLOR", "non-empty = no colour"),
    Variable("FORCE_COLOR", "non-empty = colour even into a pipe"),
    Variable("CLICOLOR_FORCE", "non-zero = colour even into a pipe"),
    Variable("TERM", "dumb = no colour, no bars"),
    Variable("COLUMNS", "width of the terminal"),
    Variable("VISUAL", "editor of config edit"),
    Variable("EDITOR", "editor of config edit"),
    Variable("HOME", "home directory"),
    Variable("ZDOTDIR", "directory of .zshrc, for completion --install"),
    Variable("SHELL", "login shell, for completion --install without a shell name"),
    Variable("SSL_CERT_FILE", "extra certificate authorities, PEM"),
    Variable("HTTP_PROXY", "proxy, shown by doctor (also in lower case)"),
    Variable("HTTPS_PROXY", "proxy, shown by doctor (also in lower case)"),
    Variable("ALL_PROXY", "proxy, shown by doctor (also in lower case)"),
    Variable("NO_PROXY", "hosts without proxy, shown by doctor (also in lower case)"),
    Variable("HSA_OVERRIDE_GFX_VERSION", "overrides what an AMD driver reports; shown by hw"),
    Variable("HIP_VISIBLE_DEVICES", "hides devices; shown by hw"),
    Variable("ROCR_VISIBLE_DEVICES", "hides devices; shown by hw"),
    Variable("CUDA_VISIBLE_DEVICES", "hides devices; shown by hw"),
    Variable("CUDA_DEVICE_ORDER", "PCI_BUS_ID = cards are numbered by their place; shown by hw"),
    Variable("MUSA_VISIBLE_DEVICES", "hides devices; shown by hw"),
    Variable("XDG_CONFIG_HOME", "config base"),
    Variable("XDG_DATA_HOME", "data base"),
    Variable("XDG_STATE_HOME", "state base"),
    Variable("XDG_CACHE_HOME", "cache base"),
)
KNOWN = frozenset(v.name for v in VARIABLES)
_BUILD_AND_TEST = ("LLMRUN_REQUIRE_KERNELS", "LLMRUN_TEST_")  # read by the build hook and the tests, not by the program


class Env:
    """A snapshot of the variables above; made once in main, handed down as values."""

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        source = os.environ if values is None else values
        self._values = {k: v for k, v in source.items() if k in KNOWN and v != ""}
        self._unknown = tuple(
            sorted(
                k for k in source if k.startswith("LLMRUN_") and k not in KNOWN and not k.startswith(_BUILD_AND_TEST)
            )
        )

    def get(self, name: str, default: str = "") -> str:
        """The variable's text. The name must be listed in VARIABLES."""
        if name not in KNOWN:
            raise KeyError(name)
        return self._values.get(name, default)

    def flag(self, name: str) -> bool:
        """True for anything but unset, 0, false, no, off."""
        return self.get(name).lower() not in ("", "0", "false", "no", "off")

    def unknown(self) -> tuple[str, ...]:
        """Names that look like ours and mean nothing: misspelt ones, or of another version."""
        return self._unknown

    @property
    def offline(self) -> bool:
        """The network must not be used."""
        return any(self.flag(n) for n in ("LLMRUN_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))

    def paths(self) -> Paths:
        """By LLMRUN_HOME, then XDG or the platform's places; a temporary directory when there is no home at all."""
        moved = self.get("LLMRUN_HOME")
        if moved:
            base = expand(moved).absolute()
            found = (base / "config", base / "data", base / "state", base / "cache")
        else:
            found = self._platform_dirs()
        config, data, state, cache = found
        cache = expand(self.get("LLMRUN_CACHE") or cache).absolute()
        models = expand(self.get("LLMRUN_MODELS_DIR") or data / "models").absolute()
        return Paths(config, data, models, state, cache)

    def _platform_dirs(self) -> tuple[Path, Path, Path, Path]:
        import platformdirs

        if os.name == "posix" and not self.get("HOME") and not self.get("XDG_DATA_HOME"):
            home = self._home_from_system()
            if home is None:
                import tempfile  # slow to import and hardly ever needed

                base = Path(tempfile.gettempdir()) / f"llmrun-{os.getuid()}"
                _refuse_planted(base)
                return base / "config", base / "data", base / "state", base / "cache"
        dirs = platformdirs.PlatformDirs("llmrun", appauthor=False)
        return dirs.user_config_path, dirs.user_data_path, dirs.user_state_path, dirs.user_cache_path

    @staticmethod
    def _home_from_system() -> Path | None:
        home = expand("~")
        return home if home.is_absolute() and home.is_dir() and os.access(home, os.W_OK) else None


def _refuse_planted(base: Path) -> None:
    """The name can be guessed, so a directory or link that somebody else put there must not be used."""
    if base.is_symlink() or (base.exists() and base.stat().st_uid != os.getuid()):
        raise UsageError(f"{base} belongs to somebody else", "set HOME or LLMRUN_HOME to a directory of yours")
