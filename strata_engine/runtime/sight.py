"""How an engine sees: images of a request become patches and places in the prompt, later features for its rows.

Patches are made in the caller's thread, features in the engine's, when the first of their rows is about to run. The
features of the last images are kept: a conversation shows its images again with every turn.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from strata_engine.chat import Part
from strata_engine.core.pictures import Picture, Pictures, Sight
from strata_engine.errors import ContextExceeded, RequestRefused
from strata_engine.models.vision.patches import count_tokens, see_image
from strata_engine.models.vision.tower import Tower
from strata_engine.text.base import Tokenizer
from strata_engine.text.images import PAD

_KEPT_BYTES = 256 << 20


def make_eye(tower: Tower | None, tokenizer: Tokenizer | None) -> Eye | None:
    """The sight of a model with a tower whose vocabulary has a token for images; None without either."""
    if tower is None or tokenizer is None:
        return None
    known = tower.config.image_id
    spelled = tokenizer.encode(PAD, special=True) if known is None else [known]
    return Eye(tower, spelled[0]) if len(spelled) == 1 else None


class Eye:
    """The sight of one engine. `image_id`: the token that stands for a feature of an image."""

    def __init__(self, tower: Tower, image_id: int) -> None:
        self.image_id = image_id
        self._tower = tower
        self._kept: OrderedDict[str, NDArray[np.float32]] = OrderedDict()

    @property
    def feature_width(self) -> int:
        """Elements of a token's features."""
        return self._tower.config.feature_width

    def place(self, ids: Sequence[int], parts: Sequence[Part], context_tokens: int) -> tuple[list[int], Pictures]:
        """Ids with one image token for each feature in place of one for each image, and the images.

        Raises RequestRefused: an image that cannot be read, or ids with another number of images (a bug of a template);
        ContextExceeded before any pixel is read: more tokens than the context holds.
        """
        places = [at for at, token in enumerate(ids) if token == self.image_id]
        if len(places) != len(parts):
            raise RequestRefused(f"the prompt has room for {len(places)} images, the conversation holds {len(parts)}")
        self._require_room(len(ids), parts, context_tokens)
        out: list[int] = []
        images: list[Picture] = []
        begun = 0
        for at, part in zip(places, parts, strict=True):
            seen = see_image(part.data, self._tower.config.pixels)
            out += ids[begun:at]
            images.append(Picture(len(out), seen.height, seen.width, seen.key, seen.patches))
            out += [self.image_id] * (seen.height * seen.width)
            begun = at + 1
        out += ids[begun:]
        return out, Pictures(len(out), images)

    def _require_room(self, tokens: int, parts: Sequence[Part], context_tokens: int) -> None:
        """Making patches of many large images takes seconds and gigabytes; their sizes tell their tokens."""
        shown = sum(count_tokens(part.data, self._tower.config.pixels) for part in parts)
        whole = tokens - len(parts) + shown
        if whole >= context_tokens:
            raise ContextExceeded(
                f"the prompt has {whole} tokens, {shown} of them of {len(parts)} images; the context holds "
                f"{context_tokens} and the answer needs at least one",
                hint="fewer or smaller images, or load the model with a larger context (--ctx)",
                details={"n_prompt_tokens": whole, "n_image_tokens": shown, "n_ctx": context_tokens},
            )

    def sight(self, pictures: Pictures, start: int, count: int) -> Sight:
        """What `count` rows from token `start` see. Engine's thread only: makes the features of images it meets."""
        for image in pictures.within(start, count):
            if image.features is None:
                image.features = self._features(image)
                image.patches = None
        return pictures.sight(start, count, self.feature_width)

    def look(self, pictures: Pictures, start: int, count: int) -> bool:
        """Make the features of one image that `count` rows from token `start` see; False while others lack theirs."""
        waiting = [image for image in pictures.within(start, count) if image.features is None]
        if waiting:
            waiting[0].features = self._features(waiting[0])
            waiting[0].patches = None
        return len(waiting) <= 1

    def _features(self, image: Picture) -> NDArray[np.float32]:
        found = self._kept.pop(image.key, None)
        if found is None:
            assert image.patches is not None
            merge = self._tower.config.pixels.merge
            found = self._tower.features(image.patches, (image.height * merge, image.width * merge))
        self._kept[image.key] = found
        while len(self._kept) > 1 and sum(one.nbytes for one in self._kept.values()) > _KEPT_BYTES:
            self._kept.popitem(last=False)
        return found
