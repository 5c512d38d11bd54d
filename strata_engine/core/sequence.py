"""One request inside the engine: its tokens, its limits, and the pages it holds.

Knows no text and no tensors. The scheduler moves a sequence through its states; memory fills its hold.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from strata_engine.core.pictures import Pictures

WAITING, RUNNING, DONE = "waiting", "running", "done"
NO_SLOT = -1


@dataclass(eq=False)
class Hold:
    """Pages of one sequence in order, how many tokens in them are computed, its state slot. Changed by Memory only.

    `fold`: how many of the last tokens a recurrent state has not taken up yet: their rows were drafts when they ran.
    `drafted`: by drafter, tokens whose rows in its own layers are valid; the drafter writes it.
    The first `shared` tokens came from the prefix cache. `marks`: token counts after which a copy of the state is
    wanted, so that a prompt is cut there; `copied`: the last one it was made after. `entered`: tokens the cache has.
    """

    pages: array[int] = field(default_factory=lambda: array("i"))
    tokens: int = 0
    slot: int = NO_SLOT  # taken with the first pages when the model has recurrent layers
    fold: int = 0
    drafted: dict[str, int] = field(default_factory=dict)
    shared: int = 0
    marks: tuple[int, ...] = ()
    copied: int = 0
    entered: int = 0


@dataclass(eq=False)
class Sequence:
    """Prompt ids followed by generated ids.

    `prompt_tokens`: how many of `tokens` are prompt. `limit_tokens`: the sequence ends when it is this long (context or
    prompt + max_tokens, whichever is less). `order`: place in the line; a preempted sequence keeps it. `pictures`:
    images of the prompt, with their hashes. `speculate` False: no drafts for it.
    """

    id: str
    tokens: list[int]
    prompt_tokens: int
    limit_tokens: int
    order: int = 0
    state: str = WAITING
    cancelled: bool = False
    preemptions: int = 0
    cached_tokens: int = 0  # tokens of the prompt that did not run because they were known
    hold: Hold = field(default_factory=Hold)
    pictures: Pictures | None = None
    speculate: bool = True

    @property
    def pending(self) -> int:
        """Tokens whose keys and values are not computed yet: 1 while decoding."""
        return len(self.tokens) - self.hold.tokens

    @property
    def generated(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.prompt_tokens
