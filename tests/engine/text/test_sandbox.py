"""Chat templates as untrusted programs: what they may do, how they fail, and that they end."""

from __future__ import annotations

import time
from datetime import datetime

import pytest

from strata_engine.errors import RequestRefused, UsageError
from strata_engine.text.budget import Budget
from strata_engine.text.sandbox import MAX_TEMPLATE_CHARS, Compiled

LIMIT = 1 << 20


def render(source: str, **values) -> str:
    return Compiled(source, lambda: datetime(2026, 2, 3)).render(values, Budget(LIMIT))


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("a\n  {% if x %}\nb\n{% endif %}\nc", "a\nb\nc"),
        ("{% for i in x %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
        ("{% for i in x %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "23"),
        ("{{ {'a': '<é>', 'b': none, 'c': true} | tojson }}", '{"a": "<é>", "b": null, "c": true}'),
        ("{{ {'a': 1} | tojson(indent=2) }}", '{\n  "a": 1\n}'),
        ("{{ strftime_now('%Y-%m-%d') }}", "2026-02-03"),
        ("{% generation %}a{{ x[0] }}{% endgeneration %}", "a1"),
        ("{% set n = namespace(v=1) %}{% for i in x %}{% set n.v = n.v * 2 %}{% endfor %}{{ n.v }}", "8"),
        ("{% macro m(a, b='!') %}{{ a ~ b }}{% endmacro %}{{ m('x') + m('y', b='?') }}", "x!y?"),
        ("{{ ['a', 'b'] | join(', ') }}{{ 'a b' | replace(' ', '_') }}{{ 'x\ny' | indent(2) }}", "a, ba_bx\n  y"),
        ("{{ '%s has %d' | format('a', 12345678) }}{{ 'abc'[::-1] }}{{ 5 | string }}", "a has 12345678cba5"),
        ("{{ 'a,b'.split(',')[-1].strip() }}{{ '{}-{}'.format(1, 2) }}", "b1-2"),
        ("{% for k, v in {'a': 1} | items %}{{ k }}{{ v }}{% endfor %}", "a1"),
        ("{{ x | selectattr('y', 'undefined') | list | length }}{{ missing }}", "3"),
        ("{{ x | map('string') | join('-') }}{{ (x, x) | string | length }}", "1-2-322"),
    ],
)
def test_templates_can_do_what_published_ones_do(source: str, text: str):
    assert render(source, x=[1, 2, 3]) == text


def test_the_names_a_template_reads_are_known():
    assert Compiled("{% set a = b %}{{ a }}{{ messages }}").variables == {"b", "messages"}


@pytest.mark.parametrize(
    ("source", "line", "column"),
    [
        ("{% if x %}", 1, 4),
        ("a\n  {{ x y }}", 2, 8),
        ("a\n{% foo %}", 2, 4),
        ("{{ x | nothing }}", 1, 8),
        ("a\n\n{{ ", 3, 1),
    ],
)
def test_an_invalid_template_is_named_with_line_and_column(source: str, line: int, column: int):
    with pytest.raises(UsageError) as error:
        Compiled(source)
    assert error.value.details == {"line": line, "column": column}
    assert f"line {line}, column {column}" in error.value.message


@pytest.mark.parametrize("source", ["{{ " + "(" * 5000 + " }}", "{% if x %}" * 2000, "x" * (MAX_TEMPLATE_CHARS + 1)])
def test_an_oversized_or_bottomless_template_is_a_usage_error(source: str):
    with pytest.raises(UsageError):
        Compiled(source)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{{ raise_exception('Not like this') }}", "refuses this conversation: Not like this"),
        ("a\n{{ x.y.z }}", "line 2.*UndefinedError"),
        ("{{ 'a' + 1 }}", "TypeError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{% for k, v in none | items %}{% endfor %}", "TypeError"),
        ("{{ {}.pop('x') }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ missing | tojson }}", "TypeError"),
        ("{% include 'other' %}", "no loader"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
    ],
)
def test_a_failing_template_refuses_the_request(source: str, says: str):
    with pytest.raises(RequestRefused, match=says):
        render(source, messages=[])


_GROW = "{%% set n = namespace(v=%s) %%}{%% for i in range(99) %%}{%% set n.v = %s %%}{%% endfor %%}{{ n.v %s }}"
HOSTILE = [
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(50) }}",
    "{% for i in range(99999999999) %}{% endfor %}",
    _GROW % ("'a'", "n.v ~ n.v", ""),
    _GROW % ("'a'", "n.v + n.v", ""),
    _GROW % ("[1]", "n.v + n.v", ""),
    _GROW % ("[1]", "[n.v, n.v]", ""),
    _GROW % ("[1]", "[n.v, n.v]", "| tojson"),
    _GROW % ("[1]", "[n.v, n.v]", "| string"),
    _GROW % ("3", "n.v * n.v", ""),
    _GROW % ("'a'", "n.v.replace('a', 'aa')", ""),
    _GROW % ("'a'", "n.v | replace('a', 'aa')", ""),
    _GROW % ("'a'", "[n.v, n.v] | join", ""),
    _GROW % ("'a'", "''.join([n.v, n.v])", ""),
    _GROW % ("'a'", "'%s%s' % (n.v, n.v)", ""),
    _GROW % ("'a'", "'{0}{0}'.format(n.v)", ""),
    "{{ 'a' * 1000000000 }}",
    "{{ [1] * 1000000000 }}",
    "{{ 99999999 ** 99999999 }}",
    "{{ 'a'.ljust(1000000000) }}",
    "{{ 'a' | center(1000000000) }}",
    "{{ ['a'] | map('center', 1000000000) | list }}",
    "{% filter center(1000000000) %}a{% endfilter %}",
    "{{ 'a\na' | indent(1000000000) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ '%1000000000d' | format(1) }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '{:{}}'.format(1, 1000000000) }}",
    "{{ [1] | batch(1000000000, 0) | list }}",
    "{% for i in range(99999) %}" + "x" * 100 + "{% endfor %}",
]


@pytest.mark.parametrize("source", HOSTILE)
def test_a_hostile_template_is_stopped(source: str):
    began = time.process_time()
    with pytest.raises(RequestRefused):
        render(source)
    assert time.process_time() - began < 20


def test_a_slow_template_is_stopped_by_the_clock():
    now = iter(range(100000))
    budget = Budget(LIMIT, seconds=5, clock=lambda: float(next(now)))
    with pytest.raises(RequestRefused, match="longer than 5 s"):
        Compiled("{% for i in range(99999) %}{% endfor %}").render({}, budget)


def test_one_template_renders_in_several_threads_with_budgets_of_their_own():
    from concurrent.futures import ThreadPoolExecutor

    compiled = Compiled("{% for m in messages %}{{ m ~ '.' }}{% endfor %}")
    with ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(lambda n: compiled.render({"messages": [n] * 500}, Budget(LIMIT)), range(20)))
    assert texts == [f"{n}." * 500 for n in range(20)]
