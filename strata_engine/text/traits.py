"""What a chat template can take, found by rendering small conversations with it. A probe runs once, when needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from strata_engine.errors import RequestRefused

Render = Callable[[Mapping[str, Any]], str]
_TOOL = {"type": "function", "function": {"name": "probe_tool", "description": "probe_note",
         "parameters": {"type": "object", "properties": {"probe_key": {"type": "string"}}}}}  # fmt: skip
_LONG_ID, _SHORT_ID = "call_probe_0001", "probe0001"


class Traits:
    """Probes of one template. `render` takes template values and raises RequestRefused."""

    def __init__(self, render: Render) -> None:
        self._render = render

    @cached_property
    def wants_parts(self) -> bool:
        """Content must be a list of parts; a string fails or is lost."""
        return not self._shows([_user("PROBE-U")], "PROBE-U") and self._shows(
            [{"role": "user", "content": [{"type": "text", "text": "PROBE-U"}]}], "PROBE-U"
        )

    @cached_property
    def system_role(self) -> bool:
        """A leading system message is rendered."""
        system = {"role": "system", "content": self._content("PROBE-S")}
        return self._shows([system, self._said("user", "PROBE-U")], "PROBE-S", "PROBE-U")

    @cached_property
    def repeats(self) -> bool:
        """Two messages of one role may follow each other."""
        return self._shows([self._said("user", "PROBE-A"), self._said("user", "PROBE-B")], "PROBE-A", "PROBE-B")

    @cached_property
    def tools(self) -> bool:
        """Declared functions reach the prompt."""
        return self._shows([self._said("user", "PROBE-U")], "probe_tool", "PROBE-U", tools=[_TOOL])

    @cached_property
    def tool_turns(self) -> bool:
        """Calls and results in the history reach the prompt."""
        return self._call_form is not None

    @cached_property
    def argument_text(self) -> bool:
        """Arguments must be JSON text: an object fails, or is printed the Python way."""
        return self._call_form is not None and self._call_form[1]

    @cached_property
    def short_ids(self) -> bool:
        """Call ids must have nine letters or digits."""
        return self._call_form is not None and self._call_form[0]

    @cached_property
    def _call_form(self) -> tuple[bool, bool] | None:
        """(short ids, arguments as text) of the first form that works."""
        arguments = {"probe_key": "PROBE-V"}
        for call_id in (_LONG_ID, _SHORT_ID):
            for form in (arguments, '{"probe_key": "PROBE-V"}'):
                text = self._try(self._called(call_id, form), tools=[_TOOL])
                shown = all(word in text for word in ("probe_tool", "PROBE-V", "PROBE-R"))
                if shown and "{'probe_key'" not in text and '{\\"probe_key' not in text:
                    return call_id == _SHORT_ID, form is not arguments
        return None

    def _called(self, call_id: str, arguments: Any) -> list[dict[str, Any]]:
        call = {"id": call_id, "type": "function", "function": {"name": "probe_tool", "arguments": arguments}}
        return [
            self._said("user", "PROBE-U"),
            {"role": "assistant", "content": self._content(""), "tool_calls": [call]},
            {"role": "tool", "content": self._content("PROBE-R"), "tool_call_id": call_id, "name": "probe_tool"},
        ]

    def _content(self, text: str) -> Any:
        return [{"type": "text", "text": text}] if self.wants_parts else text

    def _said(self, role: str, text: str) -> dict[str, Any]:
        return {"role": role, "content": self._content(text)}

    def _shows(self, messages: list[dict[str, Any]], *words: str, **values: Any) -> bool:
        text = self._try(messages, **values)
        return all(word in text for word in words) and "'type'" not in text

    def _try(self, messages: list[dict[str, Any]], **values: Any) -> str:
        try:
            return self._render({"messages": messages, "add_generation_prompt": True, **values})
        except RequestRefused:
            return ""


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}
