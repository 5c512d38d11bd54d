"""Loops of a program of machine instructions: which instructions run once a turn of which loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Instruction:
    """`goal`: index of the instruction it may branch to, -1: none. `ends`: the next one never runs after it."""

    name: str
    goal: int = -1
    ends: bool = False


def loops(program: Sequence[Instruction]) -> list[list[int]]:
    """Indices of the instructions of each loop without those of loops inside it, in order of where loops begin.

    A loop is a branch to a block that every way from the start to the branch leads through, and all blocks from which
    the branch is reached without that block. Blocks that compilers move behind the end are no loops.
    """
    starts = sorted({0, *(step.goal for step in program if step.goal >= 0)} | _behind(program))
    starts = [start for start in starts if start < len(program)]
    if not starts:
        return []
    blocks = [range(a, b) for a, b in zip(starts, [*starts[1:], len(program)], strict=True)]
    number = {start: at for at, start in enumerate(starts)}
    follow = [_following(program, blocks, at, number) for at in range(len(blocks))]
    before: list[list[int]] = [[] for _ in blocks]
    for at, nexts in enumerate(follow):
        for one in nexts:
            before[one].append(at)
    bodies = _bodies(follow, before)
    found: list[list[int]] = []
    for head in sorted(bodies):
        inner = set[int]().union(*(body for other, body in bodies.items() if other != head and body < bodies[head]))
        found.append([index for block in sorted(bodies[head] - inner) for index in blocks[block]])
    return found


def _behind(program: Sequence[Instruction]) -> set[int]:
    return {at + 1 for at, step in enumerate(program) if step.goal >= 0 or step.ends}


def _following(program: Sequence[Instruction], blocks: Sequence[range], at: int, number: dict[int, int]) -> list[int]:
    last = program[blocks[at][-1]]
    nexts = [number[last.goal]] if last.goal >= 0 else []
    if not last.ends and at + 1 < len(blocks):
        nexts.append(at + 1)
    return nexts


def _bodies(follow: Sequence[Sequence[int]], before: Sequence[Sequence[int]]) -> dict[int, set[int]]:
    """First block of each loop -> all its blocks."""
    dominators = _dominators(follow, before)
    bodies: dict[int, set[int]] = {}
    for at, nexts in enumerate(follow):
        for head in nexts:
            if head in dominators[at]:
                body, waiting = bodies.setdefault(head, {head}), [at]
                while waiting:
                    block = waiting.pop()
                    if block not in body:
                        body.add(block)
                        waiting.extend(before[block])
    return bodies


def _dominators(follow: Sequence[Sequence[int]], before: Sequence[Sequence[int]]) -> list[set[int]]:
    """Of each block, the blocks that every way to it leads through; none of a block that is never reached."""
    reached, waiting = {0}, [0]
    while waiting:
        for one in follow[waiting.pop()]:
            if one not in reached:
                reached.add(one)
                waiting.append(one)
    found = [set(reached) if at in reached else set[int]() for at in range(len(follow))]
    found[0] = {0}
    changed = True
    while changed:
        changed = False
        for at in sorted(reached - {0}):
            ways = [found[one] for one in before[at] if one in reached]
            new = set[int].intersection(*ways) | {at}
            if new != found[at]:
                found[at], changed = new, True
    return found
