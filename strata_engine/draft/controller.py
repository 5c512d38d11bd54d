"""Chooses drafter and depth of each step, so that drafts never cost time in the long run.

For every drafter and depth it knows how many tokens a step is likely to commit and how long draft and step take, and
takes the most tokens a second; depth 0 is plain decoding. Times are measured by width, so what more rows cost (experts
of a mixture included) needs no model. Lookup is asked first, for asking costs nothing; its drafts run where their class
of match beats what the best other plan promises. Three things bound what may be lost:

- an account: seconds saved against plain decoding come in, seconds lost go out, and 1.5 % of all time comes in.
  Drafts need a balance, whatever the estimates say. So on any text at most that share is lost, and a first allowance.
  Where lookup is all there is a sequence begins with that allowance, so that no answer pays for the gains of another.
- recording a step of a new width is paid from the account, and a width that is known already is preferred.
- trials of what does not seem to pay come at intervals that double to 128 steps, or sooner where little is at stake,
  and start anew with success or when a sequence is new.
- a plain step from time to time keeps the time it compares with true.

No clock and no randomness: the same rounds give the same plans.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from strata_engine.draft.estimates import Acceptance, Costs, Curve, expected
from strata_engine.draft.plan import Load, Plan, Round
from strata_engine.draft.widths import depths, is_width

LOOKUPS = ("suffix", "ngram")
_INCOME = 0.015  # share of all time that may be lost to drafts that do not pay
_STAKE = 0.007  # share of time that trials may cost where little is at stake
_ALLOWANCE, _SAVINGS = 6.0, 32.0  # plain steps: the first balance, the highest one
_SMALL = 2.0  # plain steps: the first balance where nothing but lookup is there, whose trials are small
_USES = 8  # steps of a new width that share the cost of recording it
_MOST_RECORDING = 4.0  # plain steps that recording is charged with at most; 1 where drafters have steps of their own
_MARGIN = 1.01  # drafts must promise this much more than plain decoding
_PLAIN_EVERY = 64
_PLAIN_FIRST = 2
_LEAST_WAIT, _MOST_WAIT, _RARELY = 4, 128, 512
_HOPE = 0.9  # rate that a trial hopes for
_TRIED = 4  # drafts of a lookup that is tried
_LONGEST_REST = 16
_WIDER = 16  # rounds of lookup after which one is wider than the estimates say
_FRESH = 4  # rounds for which a choice stands
_PRIOR = {"ngram": 0.5, "suffix": 0.5, "draft": 0.7, "mtp": 0.75, "eagle3": 0.65, "dflash": 0.75}
_START = {"mtp": 2, "eagle3": 3, "draft": 3, "dflash": 7}  # depth before anything is known
_SCARCE = 3  # rounds with drafts until the estimates choose the depth


@dataclass
class _Trials:
    """When to try again what does not seem to pay."""

    wait: int = _LEAST_WAIT
    last: int = 0

    def due(self, now: int, loss: float) -> bool:
        """`loss`: what the estimates say a trial costs, in plain steps."""
        return self.left(now, loss) <= 0

    def left(self, now: int, loss: float) -> float:
        """Steps until then."""
        return min(self.wait, max(1.0, loss / _STAKE)) - (now - self.last)

    def done(self, paid: bool, now: int) -> None:
        self.last, self.wait = now, 1 if paid else min(2 * max(self.wait, 2), _MOST_WAIT)


@dataclass
class _Known:
    """What is known of one drafter."""

    name: str
    most: int
    acceptance: Acceptance
    times: dict[int, Curve] = field(default_factory=dict)  # by batch in powers of two, then by depth
    trials: _Trials = field(default_factory=_Trials)
    hopes: _Trials = field(default_factory=_Trials)  # trials of depths that the estimates do not like
    shapes: set[tuple[int, int]] = field(default_factory=set)  # batch, depth that have run
    rounds: int = 0
    turn: int = 0  # which depth the next trial takes
    depths: tuple[int, ...] = ()
    lookup: bool = False

    def __post_init__(self) -> None:
        self.depths, self.lookup = depths(self.most), self.name in LOOKUPS

    @property
    def first_depth(self) -> int:
        """What is drafted before anything is known."""
        wanted = min(_START.get(self.name, 3), self.most)
        return max(depth for depth in self.depths if depth <= wanted)

    def deeper(self, depth: int) -> int:
        """About twice as deep."""
        return max(near for near in self.depths if near <= 2 * depth + 1)

    def draft_s(self, batch: int, depth: int) -> float:
        """Seconds to draft so deep; 0.0 before any was measured."""
        curve = self.times.get((batch - 1).bit_length())
        return (curve.at(depth) if curve else None) or 0.0

    def learn(self, done: Round, now: int) -> bool:
        """Rates and times of a round with this drafter. False: its times are those of a shape's first time.

        A proposal that recorded a shape of its own tells of the step, not of drafting.
        """
        self.rounds += any(done.drafted)
        for i, (drafted, accepted) in enumerate(zip(done.drafted, done.accepted, strict=True)):
            judged = accepted if i < len(done.ended) and done.ended[i] else drafted
            self.acceptance.add(judged, accepted, done.confidence[i] if done.confidence else (), now)
        shape = (done.load.batch, done.plan.depth)
        if self.lookup:
            return True
        if shape not in self.shapes:
            self.shapes.add(shape)
            return False
        if not done.draft_timed:
            return True
        bucket = (done.load.batch - 1).bit_length()
        if bucket not in self.times:
            self.times[bucket] = Curve()
        self.times[bucket].add(done.plan.depth, done.draft_s)
        return True


@dataclass
class _Choice:
    """The best plan of the drafters that cost something, and what it is compared with."""

    key: tuple[int, int]
    made: int
    plan: Plan
    rate: float
    plain_s: float


class Controller:
    """The Control of one engine. A new sequence starts from what the engine knows."""

    def __init__(self, drafters: Mapping[str, int], n_max: int | None = None, p_min: float = 0.0) -> None:
        """`drafters`: name -> deepest useful depth. `n_max`: a bound for all of them. `p_min`: least confidence."""
        self.costs = Costs()
        self.balance = 0.0  # seconds
        self._p_min = p_min
        self._now = self._plain_at = 0
        self._opened = self._trial = False
        self._load = Load(1)
        self._choice: _Choice | None = None
        self._second = Plan()  # what to do where lookup finds nothing
        self._worth = 0.0  # tokens a second of that
        self._quiet = 0.0  # steps until something is due, where nothing is
        self._beside = _Trials()
        self._recorded = set[int]()  # widths of steps that need not be recorded any more
        self._recording_s = 0.0  # that a new one takes
        self._known = dict[str, _Known]()
        for name, most in drafters.items():
            depth = min(most, n_max or most)
            self._known[name] = _Known(name, depth, Acceptance(_PRIOR.get(name, 0.7), depth))
        self._sort()
        self._allowance = _ALLOWANCE if self._others else _SMALL
        self._savings = _SAVINGS if self._others else 6.0 * _SMALL
        self._carried = 0.5 * _SAVINGS if self._others else _SMALL
        self._most_recording = 1.0 if self._others else _MOST_RECORDING

    def _sort(self) -> None:
        """Those that cost something, and the lookup that is asked before them."""
        self._others = [known for known in self._known.values() if not known.lookup]
        self._lookup = next((self._known[name] for name in LOOKUPS if name in self._known), None)

    def likely(self) -> list[tuple[str, int]]:
        """Drafters and depths whose steps are worth recording beforehand, the surest first."""
        first = [(known.name, known.first_depth) for known in self._known.values() if not known.lookup]
        others = [(known.name, depth) for known in self._known.values() for depth in known.depths]
        return list(dict.fromkeys(first + others))

    def prepared(self, rows: int) -> None:
        """A step of so many rows was recorded."""
        self._recorded.add(rows)

    def started(self) -> None:
        """A new sequence: its text may suit a drafter that did not pay before."""
        if self._opened:
            self.balance = min(self.balance, self._carried * (self._step_s(1) or 0.0))
        for known in self._known.values():
            known.trials.wait = min(known.trials.wait, _LEAST_WAIT)
            known.hopes.wait = min(known.hopes.wait, 2 * _LEAST_WAIT)

    def choose(self, load: Load, names: Sequence[str] | None = None) -> Plan:
        """The plan of the coming step. Where it comes to no drafts, `otherwise` has another."""
        self._now += 1
        self._trial, self._load, self._second, self._quiet = False, load, Plan(), 0.0
        if names is not None and len(names) < len(self._known):
            self._known = {name: known for name, known in self._known.items() if name in names}
            self._sort()
        lookup = self._lookup
        plain_s = self._step_s(load.batch)
        if plain_s is None or self.costs.plain_count(load.batch, load.context) < _PLAIN_FIRST:
            return Plan()
        if self._now - self._plain_at > _PLAIN_EVERY or self.balance <= 0.0:
            return Plan()
        self._worth = load.batch / plain_s
        self._second = self._other(plain_s) if self._others else Plan()
        if lookup is not None and not self._trial:
            return Plan(lookup.name, lookup.most)
        return self._second

    def rest(self) -> int:
        """Steps until the account has something, or until a drafter is to be tried again, but not very many."""
        plain_s = self._step_s(self._load.batch)
        if not self._opened or plain_s is None or self.costs.plain_count(self._load.batch, self._load.context) < 3:
            return 0
        if self.balance <= 0.0:
            return int(min(_LONGEST_REST, -self.balance / (_INCOME * plain_s)))
        return 0 if self._lookup is not None else int(min(_LONGEST_REST, self._quiet))

    def rested(self, steps: int) -> None:
        """Time went by, and its share came in."""
        self._now += steps
        self.balance += _INCOME * steps * (self._step_s(self._load.batch) or 0.0)

    def otherwise(self, plan: Plan) -> Plan:
        """The other plan, where lookup found nothing that is worth its rows."""
        known = self._known.get(plan.drafter or "")
        return self._second if known is not None and known.lookup else Plan()

    def cut(self, load: Load, name: str, confidence: Sequence[Sequence[float]], drafted: Sequence[int]) -> list[int]:
        """How many of each sequence's drafts are worth their rows."""
        known = self._known[name]
        counts = [min(count, known.most) for count in drafted]
        if known.lookup:
            return self._cut_lookup(known, confidence, counts)
        if not all(confidence):
            return counts
        counts = [self._sure(sure, count) for sure, count in zip(confidence, counts, strict=True)]
        return self._worthwhile(known, confidence, counts, all_rows=self._trial)[0]

    def record(self, done: Round) -> None:
        """Learn from a step."""
        known, load = self._known.get(done.plan.drafter or ""), done.load
        timed = (known is None or known.learn(done, self._now)) and done.timed
        if done.comparable:
            self._recorded.add(done.rows)
        if done.recording_s > 0.0:
            self._charge(done)
        if not timed:
            self.costs.first(load.batch, load.context, done.rows, done.step_s - done.recording_s)
            return
        if done.rows == load.batch:
            self._plain_at = self._now
        self.costs.add(load.batch, load.context, done.rows, done.step_s)
        plain_s = self._step_s(load.batch) or done.step_s
        if not self._opened:
            self._opened, self.balance = True, self._allowance * plain_s
        spent, saved = done.step_s, 0.0
        if known is not None and done.draft_timed:  # beyond twice the usual, something else holds the machine up
            usual = known.draft_s(load.batch, done.plan.depth) or plain_s
            saved = -min(done.draft_s, 2.0 * usual)
        if done.rows > load.batch:
            usual = max(self._step_s(done.rows) or spent, plain_s)
            spent = min(spent, 2.0 * usual)
            saved += done.committed / load.batch * plain_s - spent
        balance = min(self.balance + saved + _INCOME * spent, self._savings * plain_s)
        self.balance = max(balance, -self._allowance * plain_s)
        if known is not None and self._trial:
            known.trials.done(saved > 0.0, self._now)

    def _charge(self, done: Round) -> None:
        """The account pays what was recorded for drafts."""
        self._recording_s = done.recording_s
        plain_s = self._step_s(done.load.batch)
        if done.rows > done.load.batch and plain_s is not None:
            self.balance -= min(done.recording_s, self._most_recording * plain_s)

    def _step_s(self, rows: int) -> float | None:
        return self.costs.at(self._load.batch, self._load.context, rows)

    # drafters that cost something: the depth is chosen before they are asked

    def _other(self, plain_s: float) -> Plan:
        """The best plan of these drafters, or a trial, or plain. Sets what it is worth."""
        choice = self._chosen(plain_s)
        plain_rate = self._load.batch / choice.plain_s
        if choice.rate > _MARGIN * plain_rate:
            self._worth = choice.rate
            return self._explored(choice.plan)
        loss = max(0.0, 1.0 - choice.rate / plain_rate)
        for known in sorted(self._others, key=lambda known: known.trials.last):
            if known.trials.due(self._now, loss if known.name == choice.plan.drafter else 1.0):
                return self._try(known, choice)
        self._quiet = min(
            known.trials.left(self._now, loss if known.name == choice.plan.drafter else 1.0) for known in self._others
        )
        return Plan()

    def _chosen(self, plain_s: float) -> _Choice:
        """The best plan by the estimates; made anew every few rounds."""
        load, choice = self._load, self._choice
        key = (load.batch, (load.context // 1024).bit_length())
        if choice is None or choice.key != key or self._now - choice.made >= _FRESH:
            plan, rate = max((self._best(known) for known in self._others), key=lambda found: found[1])
            if choice is None or (choice.plan.drafter, choice.plan.depth) != (plan.drafter, plan.depth):
                self._beside = _Trials(2 * _LEAST_WAIT, self._now)
            choice = self._choice = _Choice(key, self._now, plan, rate, plain_s)
        return choice

    def _best(self, known: _Known, hope: float = 0.0) -> tuple[Plan, float]:
        """The depth with the most tokens a second. `hope`: rates are at least so good."""
        batch = self._load.batch
        tokens = expected([max(rate, hope) for rate in known.acceptance.places(known.most, self._now)])
        scarce = known.rounds < _SCARCE and not hope
        step_s = self.costs.table(batch, self._load.context, batch * (1 + known.most))
        best, best_rate = 0, 0.0
        for depth in (known.first_depth,) if scarce else known.depths:
            rate = batch * tokens[depth] / (step_s[batch * (1 + depth)] + known.draft_s(batch, depth))
            if rate > best_rate:
                best, best_rate = depth, rate
        return Plan(known.name, best), best_rate

    def _explored(self, best: Plan) -> Plan:
        """The best plan, or now and then one beside it that the estimates may be wrong about."""
        if self._now - self._beside.last < self._beside.wait:
            return best
        self._beside.last, self._beside.wait = self._now, min(2 * self._beside.wait, _RARELY)
        known = self._known[best.drafter or ""]
        beside = [self._best(other)[0] for other in self._others if other is not known]
        above = [depth for depth in known.depths if depth > best.depth]
        beside += [Plan(known.name, depth) for depth in dict.fromkeys((*above[:2], *above[-1:]))]
        if not beside:
            return best
        known.turn += 1
        return beside[known.turn % len(beside)]

    def _try(self, known: _Known, choice: _Choice) -> Plan:
        """A trial: of the depth the estimates like best, now and then of one that would pay if most were right."""
        known.trials.last, self._trial = self._now, True
        likely = self._best(known)[0].depth
        if not known.hopes.due(self._now, 1.0):
            return Plan(known.name, likely, trial=True)
        known.hopes.done(False, self._now)
        hoped, rate = self._best(known, _HOPE)
        if rate < self._load.batch / choice.plain_s:  # not even then
            known.trials.wait = _RARELY
        known.turn += 1
        depth = hoped.depth if known.turn % 2 else known.deeper(hoped.depth)
        cost = (self._step_s(self._load.batch * (1 + depth)) or 0.0) + known.draft_s(self._load.batch, depth)
        return Plan(known.name, depth if cost - choice.plain_s < self.balance else likely, trial=True)

    # what is decided when the drafts are there

    def _sure(self, confidence: Sequence[float], count: int) -> int:
        """Drafts before the first whose confidence is below p_min."""
        return next((i for i, sure in enumerate(confidence[:count]) if sure < self._p_min), count)

    def _cut_lookup(self, known: _Known, confidence: Sequence[Sequence[float]], counts: list[int]) -> list[int]:
        """Its drafts where they beat the other plan; sometimes a few to try."""
        if not any(counts):
            return counts
        kept, net = self._worthwhile(known, confidence, counts)
        if any(kept) and net > 0.0:
            known.turn += 1
            if known.turn % _WIDER:
                return kept
            # a width that was measured while something held the machine up would never be measured again
            wider = [min(count, 2 * had + 1) for count, had in zip(counts, kept, strict=True)]
            return self._worthwhile(known, confidence, wider, all_rows=True)[0]
        row_s, plain_s = (self._step_s(self._load.batch + more) or 0.0 for more in (1, 0))
        few = min(_TRIED, max(1, int(plain_s / max(row_s - plain_s, 0.01 * plain_s, 1e-9))))  # a plain step's worth
        tried, net = self._worthwhile(known, confidence, [min(count, few) for count in counts], all_rows=True)
        if known.trials.due(self._now, -net / self._load.batch):
            known.trials.last, self._trial = self._now, True
            return tried
        return [0] * len(counts)

    def _worthwhile(
        self, known: _Known, confidence: Sequence[Sequence[float]], counts: list[int], all_rows: bool = False
    ) -> tuple[list[int], float]:
        """The drafts, likeliest first, whose rows commit more than the other plan would in their time.

        Returns how many of each sequence, and the tokens that the step is likely to commit beyond what the other plan
        would in its time. `all_rows`: of all drafts.
        """
        load, order = self._load, list[tuple[float, int]]()
        batch, step_s = load.batch, self.costs.table(load.batch, load.context, load.batch + sum(counts))
        if not step_s:
            return [0] * len(counts), 0.0
        for i, (sure, count) in enumerate(zip(confidence, counts, strict=True)):
            product = 1.0
            for rate in known.acceptance.chain(sure, count, self._now):
                product *= rate
                order.append((-product, i))
        order.sort(key=lambda entry: entry[0])  # the products of a chain fall, so each chain keeps its order
        worth, tokens, kept = _MARGIN * self._worth, float(batch), 0
        plain_s = step_s[batch]
        best, stake = batch - worth * plain_s, self.balance if known.lookup else math.inf
        for rows, (product, _) in enumerate(order, 1):
            tokens -= product
            if not is_width(batch, batch + rows):
                continue
            new_s = 0.0 if batch + rows in self._recorded else self._recording_s
            if step_s[batch + rows] - plain_s + new_s > stake:
                continue
            net = tokens - worth * (step_s[batch + rows] + new_s / _USES)
            if net > best or all_rows:
                kept, best = rows, net
        found = [0] * len(counts)
        for _, i in order[:kept]:
            found[i] += 1
        return found, best
