"""Small chat templates of our own that behave as published ones do: what they refuse, lose, expect or add."""

from __future__ import annotations

from strata_engine.chat import ChatRequest, Message, Part, ToolCall, ToolSpec

CHATML = """\
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

# Wants the system message first, a user message at all, trims contents, reads thoughts out of the answer, iterates
# arguments as a mapping, joins tool results into user turns, and opens a thought.
STRICT = """\
{%- if not messages | selectattr('role', 'equalto', 'user') | list %}
    {{- raise_exception('No user query found in messages.') }}
{%- endif %}
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n' }}
    {%- for tool in tools %}{{- tool | tojson + '\\n' }}{%- endfor %}
    {%- if messages[0].role == 'system' %}{{- messages[0].content | trim }}{%- endif %}
    {{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content | trim + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'system' and not loop.first %}
        {{- raise_exception('System message must be at the beginning.') }}
    {%- elif message.role == 'user' %}
        {%- set content = message.content | trim %}
        {%- if content.startswith('<tool_response>') and content.endswith('</tool_response>') %}
            {{- '<|im_start|>tool\\n' + content + '<|im_end|>\\n' }}
        {%- else %}
            {{- '<|im_start|>user\\n' + content + '<|im_end|>\\n' }}
        {%- endif %}
    {%- elif message.role == 'assistant' %}
        {%- set content = message.content | trim %}
        {%- set thought = message.reasoning_content if message.reasoning_content is string else '' %}
        {%- if not thought and '</think>' in content %}
            {%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.last and thought %}{{- '<think>\\n' + thought + '\\n</think>\\n\\n' }}{%- endif %}
        {{- content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n<function=' + call.function.name + '>\\n' }}
            {%- for name, value in call.function.arguments | items %}
                {%- set shown = value if value is string else value | tojson %}
                {{- '<parameter=' + name + '>\\n' + shown + '\\n</parameter>\\n' }}
            {%- endfor %}
            {{- '</function>\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- else %}
        {{- '<think>\\n' }}
    {%- endif %}
{%- endif %}
"""

# No system role, strict turns, a BOS of its own, no tools.
ALTERNATING = """\
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}{{- raise_exception('System role not supported') }}{%- endif %}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {{- '<|im_start|>' + ('model' if message['role'] == 'assistant' else message['role']) + '\\n' }}
    {{- message['content'] | trim + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>model\\n' }}{%- endif %}
"""

# Content must be a list of parts.
PARTS = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- for part in message.content %}{%- if part.type == 'text' %}{{- part.text }}{%- endif %}{%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

# Prints the arguments as they are, wants ids of nine characters, a BOS, and drops the system message without a word.
PRINTING = """\
{{- bos_token }}
{%- if tools %}{{- '[TOOLS]' + tools | tojson + '[/TOOLS]' }}{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '<|im_start|>user\\n' + message.content + '<|im_end|>' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' + message.content }}
        {%- for call in message.tool_calls or [] %}
            {%- if call.id | length != 9 %}{{- raise_exception('Tool call IDs should have length 9') }}{%- endif %}
            {{- '[CALL]{"name": "' + call.function.name + '", "arguments": ' }}{{ call.function.arguments }}{{- '}' }}
        {%- endfor %}
        {{- '<|im_end|>' }}
    {%- elif message.role == 'tool' %}
        {{- '[RESULT]{"id": "' + message.tool_call_id + '", "content": ' + message.content | tojson + '}' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

# Thinking efforts by name; anything else raises.
EFFORT = """\
{%- set effort = reasoning_effort if reasoning_effort is defined else 'xhigh' %}
{%- if effort not in ['xhigh', 'medium', 'low'] %}{{- raise_exception('Unknown effort: ' + effort) }}{%- endif %}
{{- '<|im_start|>system\\neffort=' + effort }}
{%- if messages[0].role == 'system' %}{{- ' ' + messages[0].content }}{%- endif %}
{{- '<|im_end|>\\n' }}
{%- for message in messages %}
    {%- if message.role != 'system' %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}
    {%- else %}{{- '<think>\\n' }}{%- endif %}
{%- endif %}
"""

TEMPLATES = {
    "chatml": CHATML,
    "strict": STRICT,
    "alternating": ALTERNATING,
    "parts": PARTS,
    "printing": PRINTING,
    "effort": EFFORT,
}


def request(case: dict) -> ChatRequest:
    """A case of template_cases.jsonl as a front end would hand it down (developer and unknown roles included)."""
    messages = tuple(_message(m) for m in case["messages"])
    tools = tuple(
        ToolSpec(t["function"]["name"], t["function"]["description"], t["function"]["parameters"])
        for t in case.get("tools", ())
    )
    return ChatRequest(messages, tools)


def said(*texts: str, **more) -> ChatRequest:
    """A conversation from texts like "user: hi"."""
    return ChatRequest(tuple(Message.of(*text.split(": ", 1)) for text in texts), **more)


def _message(raw: dict) -> Message:
    content = raw.get("content")
    parts = [content] if isinstance(content, str) else [p["text"] for p in content or ()]
    calls = tuple(
        ToolCall(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in raw.get("tool_calls", ())
    )
    return Message(
        raw["role"], tuple(Part("text", p) for p in parts), tool_calls=calls, tool_call_id=raw.get("tool_call_id")
    )
