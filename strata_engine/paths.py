"""Where things live on disk (XDG or the platform's own places; LLMRUN_HOME moves all). Makes no directory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


def expand(text: str | Path) -> Path:
    """A path with ~ and ~user replaced; as the shell does, one whose user or home is unknown stays as it is."""
    return Path(os.path.expanduser(text))  # Path.expanduser raises instead


@dataclass(frozen=True)
class Paths:
    """Absolute directories of one user."""

    config: Path  # config.toml, models.yaml, aliases.yaml
    data: Path  # sessions/
    models: Path  # blobs/sha256-*, manifests/
    state: Path  # history, logs/, server.json
    cache: Path  # partial/, hub-meta/, kernels/, completion.json

    @property
    def blobs(self) -> Path:
        """Content-addressed files."""
        return self.models / "blobs"

    @property
    def manifests(self) -> Path:
        """One JSON file a pulled model."""
        return self.models / "manifests"

    @property
    def partial(self) -> Path:
        """Unfinished downloads and their journals."""
        return self.cache / "partial"

    @property
    def kernels(self) -> Path:
        """Compiled GPU kernels, a folder for each kind of device."""
        return self.cache / "kernels"

    @property
    def sessions(self) -> Path:
        """Saved chats."""
        return self.data / "sessions"

    @property
    def completion(self) -> Path:
        """Names for shell completion, refreshed by pull, rm and cp."""
        return self.cache / "completion.json"

    @property
    def server_file(self) -> Path:
        """pid, host and port of the running server (mode 0600)."""
        return self.state / "server.json"
