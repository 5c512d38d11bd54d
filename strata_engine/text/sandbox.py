"""Jinja for chat templates: sandboxed and bounded, with the functions that published templates expect.

Compiled(source).render(values, budget). Every loop body and macro counts against the budget, and so does all that can
make a text long. The budget travels in the rendering context, so one compiled template serves several threads.
"""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, filters, meta, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from strata_engine.errors import RequestRefused, UsageError
from strata_engine.text.budget import Budget

MAX_TEMPLATE_CHARS = 1 << 20
_BUDGET, _TICK, _CONCAT = "_llmrun_budget", "_llmrun_tick", "_llmrun_concat"
# String methods that can make much out of little.
_WIDENING = frozenset(("replace", "join", "format", "format_map", "center", "ljust", "rjust", "zfill", "expandtabs"))
_REMOVED_FILTERS = ("urlize", "xmlattr", "pprint", "filesizeformat", "random", "escape", "e", "forceescape")
# What a template can do wrong at run time. TemplateError covers undefined names, the sandbox, and refusals.
_RENDER_ERRORS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


class Refusal(TemplateError):
    """The template called raise_exception."""


class Compiled:
    """A template ready to render. `variables` are the names it reads from outside."""

    def __init__(self, source: str, clock: Callable[[], datetime] = datetime.now) -> None:
        """Raises UsageError with line and column when the source is not a valid template."""
        if len(source) > MAX_TEMPLATE_CHARS:
            raise UsageError(f"the chat template has {len(source)} characters; the limit is {MAX_TEMPLATE_CHARS}")
        self.source = source
        environment = _Environment(clock)
        try:
            tree = environment.parse(source)
            self.variables = frozenset(meta.find_undeclared_variables(tree))
            self._template = environment.from_string(_Counted().visit(tree))
        except TemplateSyntaxError as error:
            raise _syntax(source, error.lineno, error.message or "") from error
        except (TemplateError, RecursionError) as error:
            raise _syntax(source, 1, str(error)) from error

    def render(self, values: Mapping[str, Any], budget: Budget) -> str:
        """The text. Raises RequestRefused when the template refuses, fails, or spends more than the budget."""
        pieces: list[str] = []
        length = 0
        given = {**values, _BUDGET: budget, _TICK: budget.tick, _CONCAT: budget.concat}
        try:
            for piece in self._template.generate(given):
                length += len(piece)
                budget.sized(length)
                pieces.append(piece)
        except Refusal as error:
            raise RequestRefused(f"the chat template refuses this conversation: {error.message}") from error
        except _RENDER_ERRORS as error:
            what = f"the chat template failed in line {_line_of(error)}: {type(error).__name__}: {error}"
            raise RequestRefused(what, "another template (--chat-template), or a plainer conversation") from error
        return "".join(pieces)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, clock: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols, _Generation],
            finalize=_finalize,
            cache_size=0,
        )
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _raise
        self.globals["strftime_now"] = lambda form: clock().strftime(form)
        for name in _REMOVED_FILTERS:
            del self.filters[name]
        self.filters.update(_bounded_filters())

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _budget(context).binary(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: B902, N805
        owner = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)
        if isinstance(owner, str) and __obj.__name__ in _WIDENING:
            # Numbers that are printed are no sizes, so the arguments of a format count as one value.
            plain = __obj.__name__.startswith("format")
            _budget(__context).spread((owner, args, kwargs) if plain else (owner, *args, *kwargs.values()))
        return super().call(__context, __obj, *args, **kwargs)


class _Generation(Extension):
    """`{% generation %}` marks text for training; here it is only its body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Counted(NodeTransformer):
    """Puts a tick into every loop body and macro, and `~` under the budget."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - jinja's visitor names
        return self._ticked(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        return self._ticked(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:  # noqa: N802
        return self._ticked(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call(_CONCAT, node.nodes, node)

    def _ticked(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        tick = nodes.ExprStmt(_call(_TICK, [], node))
        tick.set_lineno(node.lineno).set_environment(node.environment)
        node.body.insert(0, tick)
        return node


def _call(name: str, arguments: list[nodes.Expr], place: nodes.Node) -> nodes.Call:
    call = nodes.Call(nodes.Name(name, "load"), arguments, [], None, None)
    call.set_lineno(place.lineno)
    if place.environment is not None:
        call.set_environment(place.environment)
    return call


def _budget(context: Context) -> Budget:
    return context.parent[_BUDGET]


@pass_context
def _finalize(context: Context, value: Any) -> Any:
    return value if isinstance(value, str) else _budget(context).printed(value)


def _bounded_filters() -> dict[str, Callable[..., Any]]:
    return {
        "tojson": _bounded(_tojson),
        "string": _bounded(str),
        "center": _bounded(filters.do_center),
        "indent": _bounded(filters.do_indent),
        "format": _bounded(filters.do_format, sizes=False),
        "batch": _bounded(lambda *args: list(filters.do_batch(*args))),
        "slice": _bounded(lambda *args: list(filters.sync_do_slice(*args))),
        "wordwrap": _bounded(filters.do_wordwrap, lambda context: context.environment),
        "replace": _bounded(filters.do_replace, lambda context: context.eval_ctx),
        "join": _bounded(filters.do_join, lambda context: context.eval_ctx),
    }


def _bounded(
    function: Callable[..., Any], first: Callable[[Context], Any] | None = None, sizes: bool = True
) -> Callable[..., Any]:
    @pass_context
    def run(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(value, str | dict | list | tuple | int):
            value = list(value) if hasattr(value, "__next__") else value
        _budget(context).spread((value, *args, *kwargs.values()) if sizes else (value, args, kwargs))
        return function(*((first(context),) if first else ()), value, *args, **kwargs)

    return run


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Plain JSON: jinja's own filter escapes for HTML, which would put \u003c into prompts.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: object) -> NoReturn:
    raise Refusal(str(message))


def _line_of(error: BaseException) -> int:
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == "<template>"]
    return lines[-1] if lines else 1


def _syntax(source: str, line: int, message: str) -> UsageError:
    lines = source.splitlines() or [""]
    line = min(max(line, 1), len(lines))
    column = _column(lines[line - 1], message)
    return UsageError(
        f"the chat template is not valid in line {line}, column {column}: {message}",
        "check the template; `llmrun template MODEL --check` tries one",
        {"line": line, "column": column},
    )


def _column(text: str, message: str) -> int:
    # Jinja gives lines only: the last thing it quotes is what it stumbled over; else the last tag of the line.
    quoted = [word for word in re.findall(r"'([^']+)'", message) if word in text]
    if quoted:
        return text.rfind(quoted[-1]) + 1
    return max(text.rfind("{%"), text.rfind("{{"), text.rfind("{#"), 0) + 1
