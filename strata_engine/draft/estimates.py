"""What the controller has measured: times of steps by width, times of drafters by depth, how often drafts are right.

Pure arithmetic on what it is told, without a clock of its own: the same rounds give the same estimates.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

_TIME_WEIGHT = 0.25  # of a new time in the running one
_ROW_PRIOR = 0.25  # a further row of a step, in parts of a plain row's share, before any is measured
_FADE = 0.98  # of old evidence with each round that has new
_IDLE_FADE = 0.997  # of old evidence with each round of the engine
_IDLE_FADES = tuple(_IDLE_FADE**rounds for rounds in range(64))
_SAME = 0.005  # a time that moved by less is not worth to look at again
_QUICK_FADE = 0.85  # of the few latest observations, which tell when old evidence is void
_SURPRISE = 3.0  # standard deviations that these may be off
_PRIOR_WEIGHT = 2.0
_SLOW = 128  # observations that the long-run rate looks back on; evidence fades towards it
_EDGES = (0.5, 0.62, 0.7, 0.8, 0.9, 0.95)  # classes of confidence; of lookup: matches of 3, 4, 5-7, 8-17, ...
_CENTRES = (0.35, 0.56, 0.66, 0.75, 0.85, 0.92, 0.97)


@dataclass
class Time:
    """A running time that one outlier does not move: the median of the last three goes in."""

    value: float = 0.0
    count: int = 0
    _recent: tuple[float, ...] = ()

    def add(self, seconds: float) -> None:
        """Take a measured time in."""
        self._recent = (*self._recent[-2:], seconds)
        self.count += 1
        middle = sorted(self._recent)[(len(self._recent) - 1) // 2]  # of two the lower: spikes go up
        self.value = middle if self.count <= 3 else self.value + _TIME_WEIGHT * (middle - self.value)


class Curve:
    """Times by a whole number (rows or depth): measured points, straight lines between and after them."""

    def __init__(self, times: dict[int, Time] | None = None) -> None:
        self._times = times or {}
        self._firsts = dict[int, float]()
        self._xs, self._ys = list[int](), list[float]()
        self._drawn, self._found = False, list[float]()
        self._shown = dict[int, float]()  # what was drawn

    def add(self, x: int, seconds: float) -> None:
        """Take a measured time in."""
        time = self._times.get(x)
        if time is None:
            time = self._times[x] = Time()
        time.add(seconds)
        if abs(time.value - self._shown.get(x, 0.0)) > _SAME * time.value:
            self._drawn = False

    def first(self, x: int, seconds: float) -> None:
        """A time with more in it than it should have; it counts as long as two others are not there."""
        self._firsts[x] = seconds
        self._drawn = False

    def count(self, x: int) -> int:
        """How often a time was measured here."""
        return self._times[x].count if x in self._times else 0

    def copy(self) -> Curve:
        """The same values as first guesses, to be replaced by the first measured ones."""
        return Curve({x: Time(time.value) for x, time in self._times.items()})

    def _draw(self) -> None:
        known = {x: time.value for x, time in self._times.items()}
        if len(known) == 1:
            known = {**self._firsts, **known}
        self._xs, self._ys, high = sorted(known), [], 0.0
        for x in self._xs:  # a time never falls with x
            high = max(high, known[x])
            self._ys.append(high)
        self._drawn, self._found, self._shown = True, [], known

    def table(self, count: int, prior: float = 0.0) -> list[float]:
        """Seconds at 0, 1, .., at least `count` of them, as `at` says; [] where nothing is known. Only to be read."""
        if not self._drawn:
            self._draw()
        found = self._found
        if len(found) < count and self._xs:
            found += [self._at(x, prior) for x in range(len(found), count)]
        return found

    def at(self, x: int, prior: float = 0.0) -> float | None:
        """Seconds at x; None: nothing is known.

        `prior`: where one point alone is known, the rise with each further x in parts of that point's share of an x.
        """
        if not self._drawn:
            self._draw()
        return self._at(x, prior) if self._xs else None

    def _at(self, x: int, prior: float) -> float:
        xs, ys = self._xs, self._ys
        if len(xs) < 2:
            return max(ys[0] * (1.0 + prior * (x - xs[0]) / xs[0]), 0.1 * ys[0])
        after = min(max(bisect_left(xs, x), 1), len(xs) - 1)
        x0, x1, y0, y1 = xs[after - 1], xs[after], ys[after - 1], ys[after]
        return max(y0 + (y1 - y0) * (x - x0) / (x1 - x0), 0.1 * y0)


@dataclass
class Costs:
    """Seconds of the target's step, by batch and context in powers of two, then by rows."""

    _curves: dict[tuple[int, int], Curve] = field(default_factory=dict)

    def add(self, batch: int, context: int, rows: int, seconds: float) -> None:
        """Take a step's time in."""
        self.curve(batch, context).add(rows, seconds)

    def first(self, batch: int, context: int, rows: int, seconds: float) -> None:
        """A time with more in it than the step, such as recording its shape."""
        plain_s = self.at(batch, context, batch)
        if plain_s is not None and rows > batch:  # no row costs more than a step of its own
            self.curve(batch, context).first(rows, min(seconds, plain_s * rows / batch))

    def plain_count(self, batch: int, context: int) -> int:
        """How often a plain step of this size was measured."""
        return self.curve(batch, context).count(batch)

    def at(self, batch: int, context: int, rows: int) -> float | None:
        """Seconds of a step with so many rows. None before any was measured."""
        table = self.table(batch, context, rows)
        return table[rows] if table else None

    def table(self, batch: int, context: int, most: int) -> list[float]:
        """Seconds of steps with 0, 1, .. `most` rows, or more; [] before any was measured."""
        return self.curve(batch, context).table(most + 1, _ROW_PRIOR)

    def curve(self, batch: int, context: int) -> Curve:
        """Times of steps of so many sequences by rows."""
        key = ((batch - 1).bit_length(), (context >> 10).bit_length())
        curve = self._curves.get(key)
        if curve is None:
            near = [known for known in self._curves if known[0] == key[0]]
            nearest = min(near, key=lambda known: abs(known[1] - key[1]), default=None)
            curve = self._curves[key] = Curve() if nearest is None else self._curves[nearest].copy()
        return curve


class Rate:
    """How often something comes true: recent evidence, which fades towards the long-run rate.

    Where the latest few observations are far off, most of the evidence is dropped: the text has changed.
    """

    __slots__ = ("_added", "_count", "_quick_hits", "_quick_trials", "_round", "hits", "slow", "trials")

    def __init__(self, prior: float) -> None:
        self.slow = prior
        self.trials = self.hits = 0.0
        self._quick_trials = self._quick_hits = 0.0
        self._round = self._added = self._count = 0

    def add(self, hit: bool, round_number: int) -> None:
        """Take one observation in. In one piece: a round has up to two for each draft."""
        trials, hits, slow = self.trials, self.hits, self.slow
        if self._added != round_number:
            fade = _FADE * _idle_fade(round_number - self._round)
            trials, hits = trials * fade, hits * fade
            self._round = self._added = round_number
        rate = (hits + _PRIOR_WEIGHT * slow) / (trials + _PRIOR_WEIGHT)
        quick = self._quick_trials = self._quick_trials * _QUICK_FADE + 1.0
        self._quick_hits = self._quick_hits * _QUICK_FADE + hit
        off = self._quick_hits - quick * rate
        if off * off > _SURPRISE**2 * (quick * rate * (1.0 - rate) + 0.25):
            trials, hits = 0.3 * trials, 0.3 * hits
        self.trials, self.hits = trials + 1.0, hits + hit
        self._count += 1
        self.slow = slow + (hit - slow) / min(self._count + 3, _SLOW)

    def at(self, round_number: int) -> float:
        """The rate now."""
        if round_number > self._round:
            fade = _idle_fade(round_number - self._round)
            self.trials, self.hits, self._round = self.trials * fade, self.hits * fade, round_number
        return (self.hits + _PRIOR_WEIGHT * self.slow) / (self.trials + _PRIOR_WEIGHT)


def _idle_fade(rounds: int) -> float:
    return _IDLE_FADES[rounds] if rounds < len(_IDLE_FADES) else _IDLE_FADE**rounds


class Acceptance:
    """How often a draft is right that follows right ones: by its place in the chain, and by its confidence."""

    def __init__(self, prior: float, most: int) -> None:
        self._places = [Rate(prior) for _ in range(most)]
        self._classes = [Rate(prior * centre / 0.75) for centre in _CENTRES]

    def add(self, drafted: int, accepted: int, confidence: Sequence[float], round_number: int) -> None:
        """One sequence's drafts: `accepted` were right, and the one after them, if there is one, was wrong."""
        for place in range(min(drafted, accepted + 1, len(self._places))):
            hit = place < accepted
            self._places[place].add(hit, round_number)
            if place < len(confidence):
                self._classes[bisect_left(_EDGES, confidence[place])].add(hit, round_number)

    def places(self, count: int, round_number: int) -> list[float]:
        """The rates of the first `count` places; one tried too rarely leans on the rate of the place before it."""
        rates, last = list[float](), self._places[0].at(round_number)
        for own in self._places[:count]:
            rate = own.at(round_number)
            trust = own.trials / (own.trials + 4.0) if rates else 1.0
            last += trust * (rate - last)
            rates.append(last)
        return rates

    def chain(self, confidence: Sequence[float], count: int, round_number: int) -> list[float]:
        """The rates of `count` drafts of one proposal; by confidence where it is known."""
        if not confidence:
            return self.places(count, round_number)
        known, found = dict[int, float](), list[float]()
        for sure in confidence[:count]:
            at = bisect_left(_EDGES, sure)
            if at not in known:
                known[at] = self._classes[at].at(round_number)
            found.append(known[at])
        return found


def expected(rates: Sequence[float]) -> list[float]:
    """Tokens that a step commits with 0, 1, 2, ... drafts whose conditional rates are these."""
    product, total, found = 1.0, 1.0, [1.0]
    for rate in rates:
        product *= rate
        total += product
        found.append(total)
    return found
