"""Which modules a config means: regular expressions over checkpoint names, from a file that we do not trust."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from strata_engine.formats.quant.settings import malformed

_MOST_RULES, _LONGEST = 4096, 512


@dataclass(frozen=True)
class Rule:
    """A GPTQ `dynamic` entry: modules it matches are left alone, or have changed parameters."""

    pattern: re.Pattern[str]
    excludes: bool
    changes: Mapping[str, Any] = field(default_factory=dict)


def expression(pattern: str) -> re.Pattern[str]:
    """Raises CorruptFile when it is not a regular expression, or an absurdly long one."""
    if len(pattern) > _LONGEST:
        raise malformed(f"a module pattern has {len(pattern)} characters")
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise malformed(f"the module pattern {pattern!r} is not a regular expression: {error}") from error


def read(dynamic: Any) -> tuple[Rule, ...]:
    """The rules in order: "-:expression" excludes, "+:expression" or "expression" changes. Raises CorruptFile."""
    if not dynamic:
        return ()
    if not isinstance(dynamic, dict) or len(dynamic) > _MOST_RULES:
        raise malformed(f"dynamic is not an object of at most {_MOST_RULES} rules")
    made = []
    for pattern, changes in dynamic.items():
        excludes = pattern.startswith("-:")
        if not isinstance(changes, (dict, type(None))) and not excludes:
            raise malformed(f"dynamic rule {pattern!r} has no object of changes")
        bare = pattern[2:] if excludes or pattern.startswith("+:") else pattern
        made.append(Rule(expression(bare), excludes, changes if isinstance(changes, dict) else {}))
    return tuple(made)


def first(rules: Collection[Rule], module: str) -> Rule | None:
    """The first rule whose expression matches from the start of the name."""
    return next((rule for rule in rules if rule.pattern.match(module)), None)


@dataclass(frozen=True)
class Targets:
    """Modules as compressed-tensors lists them: exact names, "re:" expressions, and classes."""

    names: frozenset[str]
    expressions: tuple[re.Pattern[str], ...]

    @classmethod
    def of(cls, listed: Any, what: str) -> Targets:
        """From JSON. Raises CorruptFile."""
        listed = [] if listed is None else listed
        if not isinstance(listed, list) or len(listed) > _MOST_RULES or not all(isinstance(x, str) for x in listed):
            raise malformed(f"{what} is not a list of at most {_MOST_RULES} names")
        expressions = tuple(expression(entry[3:]) for entry in listed if entry.startswith("re:"))
        return cls(frozenset(entry for entry in listed if not entry.startswith("re:")), expressions)

    def name(self, module: str) -> bool:
        """The module is listed by its name or an expression."""
        return module in self.names or any(pattern.match(module) for pattern in self.expressions)

    def linear(self) -> bool:
        """All linear layers are listed."""
        return "Linear" in self.names
