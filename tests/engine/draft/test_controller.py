"""The controller against a simulated clock: what it loses, what it finds, how soon it recovers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from strata_engine.draft.controller import Controller
from strata_engine.draft.estimates import Acceptance, Curve, Time, expected
from strata_engine.draft.plan import Load, Plan, Round

Rates = Sequence[float]
MOST = 7


@dataclass
class World:
    """Steps take a + b * rows, drafts da + db * depth; drafts are right at given conditional rates."""

    a: float = 1.0
    b: float = 0.1
    da: float = 0.05
    db: float = 0.05
    batch: int = 1
    noise: float = 0.0
    recording: float = 0.0  # of each shape of a drafter's step: depth and tokens that it has not read
    told: bool = True  # whether the drafter says that it recorded
    control: Controller = field(default_factory=lambda: Controller({"mtp": MOST}))
    tokens: float = 0.0
    seconds: float = 0.0
    depths: list[int] = field(default_factory=list)

    def run(self, rates: Callable[[int, random.Random], Rates], rounds: int, seed: int = 0) -> World:
        rng = random.Random(seed)
        self.tokens, self.seconds, self.depths = 0.0, 0.0, []
        known, unread = set[tuple[int, int]](), 0
        for number in range(rounds):
            now = rates(number, rng)
            load = Load(self.batch, 100)
            plan = self.control.choose(load)
            drafted = (plan.depth,) * self.batch
            if plan.drafter:
                assert self.control.cut(load, plan.drafter, [()] * self.batch, drafted) == list(drafted)
            accepted = tuple(right(now[: plan.depth], rng) for _ in range(self.batch))
            slow = 1.0 + self.noise * abs(rng.gauss(0, 1))
            draft_s = slow * (self.da + self.db * plan.depth) if plan.depth else 0.0
            step_s = slow * (self.a + self.b * self.batch * (1 + plan.depth))
            new = self.recording > 0 and plan.depth > 0 and (plan.depth, unread) not in known
            if new:
                known.add((plan.depth, unread))
                draft_s += self.recording
            unread = 1 + accepted[0] + (0 if plan.depth else unread)
            timed = not (new and self.told)
            self.control.record(Round(plan, load, drafted, accepted, draft_s, step_s, draft_timed=timed))
            self.tokens += self.batch * expected(now[: plan.depth])[-1]  # without the luck of the draw
            self.seconds += draft_s + step_s
            self.depths.append(plan.depth)
        return self

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds

    def fixed(self, rates: Rates, depth: int) -> float:
        """Tokens a second of always this depth."""
        tokens = self.batch * expected(rates[:depth])[-1]
        return tokens / (self.a + self.b * self.batch * (1 + depth) + (self.da + self.db * depth if depth else 0.0))

    def best(self, rates: Rates) -> float:
        return max(self.fixed(rates, depth) for depth in range(MOST + 1))


def right(rates: Rates, rng: random.Random) -> int:
    for count, rate in enumerate(rates):
        if rng.random() >= rate:
            return count
    return len(rates)


def always(rates: Rates) -> Callable[[int, random.Random], Rates]:
    return lambda number, rng: rates


FALLING = (0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.4)
CLOCKS = [(1.0, 0.02, 0.0, 0.02), (1.0, 0.3, 0.2, 0.0), (1.0, 0.6, 0.0, 0.3)]
TEXTS = [FALLING, [0.7] * 7, [0.5, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9], [0.3, 0.2] + [0.1] * 5, [0.0] * 7]


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("clock", CLOCKS, ids=str)
def test_it_comes_near_the_best_depth_and_never_loses(clock, batch: int):
    for rates in TEXTS:
        world = World(*clock, batch=batch)
        plain = world.fixed(rates, 0)
        first = world.run(always(rates), 300).speed
        after = world.run(always(rates), 600, seed=1).speed
        assert first > 0.93 * plain, rates  # a cold engine, everything it tried included
        assert after > 0.97 * plain, rates
        assert after > 0.95 * world.best(rates), rates


def test_it_finds_the_best_depth_within_300_rounds():
    world = World(1.0, 0.1, 0.0, 0.1).run(always(FALLING), 300)
    world.run(always(FALLING), 200, seed=1)
    near = [depth for depth in range(MOST + 1) if world.fixed(FALLING, depth) > 0.97 * world.best(FALLING)]
    assert sum(depth in near for depth in world.depths) > 180


@pytest.mark.parametrize("told", [True, False])
def test_recording_a_drafters_steps_does_not_park_it(told: bool):
    """Each trial after plain steps finds another number of unread tokens, so each of them records."""
    world = World(0.9, 0.1, recording=20.0, told=told).run(always(FALLING), 600)
    assert (sum(depth > 0 for depth in world.depths[300:]) > 270) == told


def test_it_parks_where_drafts_never_pay_and_tries_less_and_less():
    world = World(1.0, 0.3).run(always([0.0] * 7), 1000)
    assert sum(depth > 0 for depth in world.depths[:20]) >= 2  # it did try
    assert sum(depth > 0 for depth in world.depths[300:]) < 40


@pytest.mark.parametrize(("before", "after"), [(0.02, 0.9), (0.9, 0.02)])
def test_it_recovers_when_the_text_changes(before: float, after: float):
    world = World(1.0, 0.1).run(always([before] * 7), 1000)
    world.run(always([after] * 7), 400, seed=1)
    used = [sum(depth > 0 for depth in world.depths[at : at + 100]) for at in (0, 100, 200, 300)]
    if after > before:
        assert used[2] > 90 and used[3] > 90
    else:
        assert used[1] < 20 and world.speed > 0.9 * world.fixed([after] * 7, 0)


@pytest.mark.parametrize("every", [3, 10, 40, 150])
def test_texts_that_change_all_the_time_do_not_cost_more_than_3_percent(every: int):
    def rates(number: int, rng: random.Random) -> Rates:
        return [float(random.Random(number // every).random() > 0.85)] * 7

    world = World(1.0, 0.3, 0.05, 0.1).run(rates, 1000)
    assert world.speed > 0.97 * world.fixed([0.0], 0)


def test_a_text_that_fails_whenever_drafts_run_deep_is_bounded_by_the_account():
    world = World(1.0, 0.3)

    def rates(number: int, rng: random.Random) -> Rates:
        trusted = number and world.depths[-1:] != [0] and world.control.balance > 0
        return [0.0] * 7 if trusted and number % 3 else [1.0] * 7

    assert world.run(rates, 1000).speed > 0.97 * world.fixed([0.0], 0)


def test_noise_of_the_clock_does_not_mislead_it():
    world = World(1.0, 0.1, 0.05, 0.05, noise=0.3).run(always([0.8] * 7), 800)
    assert world.speed * (1 + 0.3 * 0.8) > 0.93 * world.best([0.8] * 7)


def test_one_outlier_changes_nothing():
    plans = []
    for spike in (False, True):
        control, found = Controller({"mtp": MOST}), []
        for number in range(200):
            load = Load(1, 100)
            plan = control.choose(load)
            step_s = (1.0 + 0.1 * plan.depth) * (10.0 if spike and number == 100 else 1.0)
            control.record(Round(plan, load, (plan.depth,), (plan.depth,), 0.1, step_s))
            found.append(plan)
        plans.append(found)
    assert plans[0][100].depth > 0
    assert plans[0] == plans[1]


def test_the_same_rounds_give_the_same_plans():
    assert World().run(always(FALLING), 200, seed=5).depths == World().run(always(FALLING), 200, seed=5).depths


def test_the_first_steps_are_plain_and_a_plain_one_comes_back():
    world = World(1.0, 0.05).run(always([0.95] * 7), 400)
    assert world.depths[:2] == [0, 0]
    plain = [number for number, depth in enumerate(world.depths) if depth == 0]
    assert max(b - a for a, b in zip(plain, plain[1:], strict=False)) <= 66
    assert len(plain) < 20


def test_a_step_that_carries_a_prompt_tells_no_time():
    control = Controller({"mtp": 3})
    for _ in range(5):
        load = Load(1, 100)
        plan = control.choose(load)
        control.record(Round(plan, load, (0,), (0,), 0.0, 9.0, comparable=False))
    assert control.costs.at(1, 100, 1) is None and plan == Plan()


def test_depth_stays_within_n_max():
    control = Controller({"mtp": 7}, n_max=3)
    world = World(1.0, 0.01, 0.0, 0.0, control=control).run(always([0.99] * 7), 300)
    assert max(world.depths) == 3


# lookup: the drafts are there before the choice


def lookup_speed(
    control: Controller, match: Callable[[random.Random], tuple[int, float]], rounds: int, b: float
) -> float:
    """Speed against plain where lookup finds matches of a length whose drafts are right at a rate; mtp at 0.8."""
    rng, tokens, seconds = random.Random(2), 0, 0.0
    for _ in range(rounds):
        load = Load(1, 100)
        told = plan = control.choose(load)
        drafts, accepted, draft_s, sure = 0, 0, 0.0, ()
        while plan.drafter is not None and not drafts:
            length, rate = match(rng) if plan.drafter == "suffix" else (plan.depth, 0.8)
            depth = min(plan.depth, 2 * length) if plan.drafter == "suffix" else length
            sure = tuple((length + i) / (length + i + 2) for i in range(depth)) if plan.drafter == "suffix" else ()
            drafts, told = control.cut(load, plan.drafter, [sure], [depth])[0], plan
            draft_s += 0.1 * depth if plan.drafter == "mtp" else 0.0
            accepted = right([rate] * drafts, rng)
            plan = control.otherwise(plan)
        step_s = 1.0 + b * drafts
        control.record(Round(told, load, (drafts,), (accepted,), draft_s, step_s, confidence=(sure[:drafts],)))
        tokens += 1 + accepted
        seconds += draft_s + step_s
    return tokens / seconds


def test_lookup_is_gated_by_the_length_of_its_match():
    def mixed(rng: random.Random) -> tuple[int, float]:
        return rng.choice([(0, 0.0), (3, 0.05), (20, 0.95)])

    control = Controller({"suffix": 16})
    assert lookup_speed(control, mixed, 800, 0.3) > 1.5
    load = Load(1, 100)
    control.choose(load)
    control.balance = 2.0
    assert control.cut(load, "suffix", [(0.91, 0.92, 0.92, 0.93)], [4]) == [4]
    assert control.cut(load, "suffix", [(0.6, 0.66, 0.71, 0.75)], [4]) == [0]


@pytest.mark.parametrize("b", [0.1, 0.5, 3.0])
def test_lookup_on_text_that_does_not_repeat_costs_next_to_nothing(b: float):
    def prose(rng: random.Random) -> tuple[int, float]:
        return rng.choice([(0, 0.0), (0, 0.0), (3, 0.05), (4, 0.1)])

    assert lookup_speed(Controller({"suffix": 16}), prose, 1200, b) > 0.97


def test_auto_takes_lookup_where_it_beats_the_head_and_the_head_elsewhere():
    def copies(rng: random.Random) -> tuple[int, float]:
        return rng.choice([(0, 0.0), (20, 0.97)])

    def prose(rng: random.Random) -> tuple[int, float]:
        return rng.choice([(0, 0.0), (3, 0.05)])

    def nothing(rng: random.Random) -> tuple[int, float]:
        return 0, 0.0

    def both() -> Controller:
        return Controller({"suffix": 16, "mtp": 4})

    head_alone = lookup_speed(both(), nothing, 800, 0.2)
    assert head_alone > 1.3
    assert lookup_speed(both(), prose, 800, 0.2) > 0.95 * head_alone
    assert lookup_speed(both(), copies, 800, 0.2) > 1.2 * head_alone


def test_lookup_stakes_no_more_than_the_account_holds():
    def copies(rng: random.Random) -> tuple[int, float]:
        return 20, 0.95

    control = Controller({"suffix": 16})
    assert lookup_speed(control, copies, 400, 0.3) > 2.0
    sure, load = tuple((20 + i) / (22 + i) for i in range(15)), Load(1, 100)
    found = []
    for balance in (10.0, 1.0, 0.1):
        control.choose(load)
        control.balance = balance
        found += control.cut(load, "suffix", [sure], [15])
    assert found == [15, 3, 0]


@pytest.mark.parametrize("b", [0.1, 0.5])
def test_an_answer_does_not_pay_for_the_gains_of_another(b: float):
    """Ten answers that repeat themselves, then one that does not: it loses no more than a first one may."""

    def copies(rng: random.Random) -> tuple[int, float]:
        return 20, 0.95

    def misleading(rng: random.Random) -> tuple[int, float]:
        return 20, 0.0

    control = Controller({"suffix": 16})
    for _ in range(10):
        control.started()
        assert lookup_speed(control, copies, 100, b) > 1.1
    control.started()
    assert lookup_speed(control, misleading, 192, b) > 0.97


def test_what_is_recorded_is_paid_for():
    """A drafter whose steps must be recorded first may draft again when the account has earned it."""
    control = Controller({"mtp": 7})
    plain = Round(Plan(), Load(1, 100), (0,), (0,), 0.0, 1.0)
    for _ in range(3):
        control.choose(Load(1, 100))
        control.record(plain)
    before, plan = control.balance, control.choose(Load(1, 100))
    assert plan.depth > 0
    control.record(Round(plan, Load(1, 100), (plan.depth,), (plan.depth,), 0.1, 9.0, recording_s=8.0))
    assert before - control.balance == pytest.approx(1.0)  # of 8
    control.record(Round(plan, Load(1, 100), (plan.depth,), (plan.depth,), 0.1, 1.2))
    assert control.balance > before - 1.0


def test_lookup_measures_a_width_again_that_was_slow_by_chance():
    """The first wide steps met a busy machine; the depth of the drafts grows nevertheless."""
    control, load, sure = Controller({"suffix": 16}), Load(1, 100), tuple((20 + i) / (22 + i) for i in range(15))
    slow, found = 12, []
    for _ in range(1200):
        plan = control.choose(load)
        drafts = control.cut(load, "suffix", [sure], [15])[0] if plan.drafter else 0
        held_up = drafts > 2 and slow > 0
        slow -= held_up
        step_s = (1.0 + 0.2 * drafts) * (4.0 if held_up else 1.0)
        done = Round(plan, load, (drafts,), (drafts,), 0.0, step_s, confidence=(sure[:drafts],))
        control.record(done)
        found.append(drafts)
    assert slow == 0 and sum(drafts >= 11 for drafts in found[-300:]) > 200


@pytest.mark.parametrize("name", ["mtp", "suffix"])
def test_it_may_rest_where_nothing_is_due(name: str):
    """What it need not be asked for loses no trial, and brings the income of the time that went by."""
    control, load = Controller({name: 7}), Load(1, 100)
    for _ in range(4):
        control.choose(load)
        control.record(Round(Plan(), load, (0,), (0,), 0.0, 1.0))
    control.balance = -0.15
    assert control.choose(load) == Plan() and control.rest() == 10
    control.rested(10)
    assert control.balance == pytest.approx(0.0)
    control.balance = 1.0
    plan = control.choose(load)
    assert plan.drafter == name
    if name == "suffix":  # looking up costs next to nothing, so it is always asked
        assert control.rest() == 0
        return
    rests = []
    for _ in range(40):
        plan = control.choose(load)
        control.record(Round(plan, load, (plan.depth,), (0,), 0.0, 1.0 + 0.3 * plan.depth))
        control.balance = 1.0
        if plan.drafter is None:
            rests.append(control.rest())
            control.rested(rests[-1])
    assert max(rests) == 16  # trials are rare by now
    control.rested(200)
    assert control.choose(load).drafter is None  # a plain step first, to compare with
    control.record(Round(Plan(), load, (0,), (0,), 0.0, 1.0))
    assert control.choose(load).trial


def test_what_is_worth_recording_beforehand_begins_with_what_is_drafted_first():
    control = Controller({"suffix": 16, "mtp": 4, "dflash": 7})
    assert control.likely()[:2] == [("mtp", 2), ("dflash", 7)]
    assert len(set(control.likely())) == len(control.likely())


# the parts


def test_a_curve_goes_through_its_points_and_on():
    curve = Curve()
    assert curve.at(1) is None
    curve.add(1, 1.0)
    assert curve.at(3, prior=0.25) == pytest.approx(1.5) and curve.at(3) == 1.0
    curve.add(5, 3.0)
    assert [curve.at(x) for x in (1, 2, 5, 7)] == pytest.approx([1.0, 1.5, 3.0, 4.0])
    curve.add(3, 9.0)
    assert curve.at(5) == 9.0  # more rows never take less


def test_a_time_forgets_a_slow_first_and_follows_a_change():
    time = Time()
    for seconds in (5.0, 1.0):
        time.add(seconds)
    assert time.value == 1.0
    for _ in range(30):
        time.add(2.0)
    assert time.value == pytest.approx(2.0, rel=0.01)


def test_drafts_behind_a_wrong_one_are_no_evidence():
    acceptance = Acceptance(0.5, 4)
    for number in range(1, 60):
        acceptance.add(4, 1, (), number)
    first, second, third, _ = acceptance.places(4, 60)
    assert first > 0.9 and second < 0.15
    assert third == pytest.approx(second, abs=0.05)  # never tried: as the one before it


def test_an_answer_that_ends_in_its_drafts_refuses_none():
    acceptance = Acceptance(0.5, 4)
    for number in range(1, 60):
        acceptance.add(1, 1, (), number)  # judged: up to the end only
    assert min(acceptance.places(4, 60)) > 0.9


def test_expected_tokens():
    assert expected([0.5, 0.5]) == [1.0, 1.5, 1.75]
