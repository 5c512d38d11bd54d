"""A small byte-level BPE vocabulary as GGUF metadata: 3 control tokens, 256 bytes, some merges, padding."""

from __future__ import annotations

from typing import Any

CONTROL, NORMAL, UNUSED = 3, 1, 5
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
PIECES = ("th", "the", "in", "er", "an", " t", " the", " a", "re", "on", "user", "assistant", "system")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_alphabet() -> list[str]:
    """Byte -> the printable character that byte-level BPE writes for it (GPT-2's table)."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in set(shown)]
    return [chr(b) if b in set(shown) else chr(256 + hidden.index(b)) for b in range(256)]


def vocabulary() -> tuple[list[str], list[str]]:
    """Tokens (special, bytes, merged pieces) and the merges that build every piece left to right."""
    alphabet = byte_alphabet()
    tokens = [*SPECIAL, *alphabet]
    merges: list[str] = []
    for piece in PIECES:
        spelled = [alphabet[b] for b in piece.encode()]
        left = spelled[0]
        for right in spelled[1:]:
            if left + right not in tokens:
                tokens.append(left + right)
                merges.append(f"{left} {right}")
            left += right
    return tokens, merges


def tokenizer_metadata(rows: int) -> dict[str, Any]:
    """`tokenizer.*` keys for a model of `rows` vocabulary rows; raises ValueError when the vocabulary does not fit."""
    tokens, merges = vocabulary()
    if rows < len(tokens):
        raise ValueError(f"the tiny vocabulary has {len(tokens)} tokens, the model only {rows} rows")
    padding = rows - len(tokens)
    kinds = [CONTROL] * len(SPECIAL) + [NORMAL] * (len(tokens) - len(SPECIAL)) + [UNUSED] * padding
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens + [f"[PAD{n}]" for n in range(len(tokens), rows)],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }
