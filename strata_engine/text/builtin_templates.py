"""Chat templates of our own, for model files that bring none, and by name for --chat-template. Data only."""

from __future__ import annotations

CHATML = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

PLAIN = """\
{%- set names = {'user': 'User', 'assistant': 'Assistant'} %}
{{- bos_token }}
{%- for message in messages %}
{%- if message.role == 'system' %}
{{- message.content + '\\n\\n' }}
{%- elif message.role in names %}
{{- names[message.role] + ': ' + message.content + '\\n\\n' }}
{%- else %}
{{- raise_exception('no such role here: ' + message.role) }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- 'Assistant:' }}
{%- endif %}
"""

BUILTIN = {"chatml": CHATML, "plain": PLAIN}
