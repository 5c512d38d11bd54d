"""Images that the user names: files -> parts of a message, and whether the model can see them. No engine."""

from __future__ import annotations

import mimetypes
from collections.abc import Sequence

from strata_engine.chat import Part
from strata_engine.errors import NotFound, RequestRefused, UsageError
from strata_engine.paths import expand
from strata_engine.runtime.api import LoadedModel
from strata_engine.units import format_bytes

MOST_BYTES = 100 << 20


def read_image(name: str) -> Part:
    """An image file, undecoded. Raises NotFound, UsageError (a directory, not readable), RequestRefused (too large)."""
    path = expand(name)
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            text = f"{name}: an image of {format_bytes(size)} is too large"
            raise RequestRefused(text, f"at most {format_bytes(MOST_BYTES)}")
        return Part("image", data=path.read_bytes(), media_type=mimetypes.guess_type(path.name)[0] or "")
    except FileNotFoundError as error:
        raise NotFound(f"no such image: {name}") from error
    except IsADirectoryError as error:
        raise UsageError(f"{name} is a directory", "name the images one by one") from error
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror or error}") from error


def can_see(model: LoadedModel) -> bool:
    """False for a model that is known to take text only; a server may not say."""
    return not model.capabilities or "vision" in model.capabilities


def require_sight(model: LoadedModel, names: Sequence[str]) -> None:
    """Raises RequestRefused when there are images and the model takes text only."""
    if names and not can_see(model):
        raise RequestRefused(
            f"the model {model.name} cannot see images: {', '.join(names)} (nothing was sent)",
            "use a model with vision; a GGUF model needs its image projector (mmproj) beside it",
        )
