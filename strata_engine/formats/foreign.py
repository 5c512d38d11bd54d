"""Recognises files that are not model weights, so that the message says what was given instead. No torch."""

from __future__ import annotations

from collections.abc import Callable

HEAD_BYTES = 512

_MAGICS: tuple[tuple[bytes, str, str], ...] = (
    (
        b"version https://git-lfs",
        "a Git LFS pointer: the real file was not downloaded",
        "Fetch the real file: `git lfs pull` in that repository, or `llmrun pull`.",
    ),
    (b"PK\x03\x04", "a ZIP archive (PyTorch checkpoints are ZIP archives too)", "Unpack it, or pull a GGUF file."),
    (b"PK\x05\x06", "an empty ZIP archive", "Download the file again."),
    (b"\x1f\x8b", "a gzip archive", "Unpack it first: `gunzip FILE`."),
    (b"\x28\xb5\x2f\xfd", "a zstd archive", "Unpack it first: `zstd -d FILE`."),
    (b"\xfd7zXZ\x00", "an xz archive", "Unpack it first: `xz -d FILE`."),
    (b"BZh", "a bzip2 archive", "Unpack it first: `bunzip2 FILE`."),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "Unpack it first."),
    (b"\x7fELF", "a program or library", "Give the model file."),
    (b"\x80\x02", "a Python pickle (an old PyTorch checkpoint)", "Use the safetensors or GGUF form of the model."),
    (b"lmgg", "a GGML file older than GGUF", "Convert it to GGUF again, or pull a newer file."),
    (b"tjgg", "a GGJT file older than GGUF", "Convert it to GGUF again, or pull a newer file."),
    (b"fmgg", "a GGMF file older than GGUF", "Convert it to GGUF again, or pull a newer file."),
    (b"algg", "a GGLA adapter file older than GGUF", "Convert it to GGUF again, or pull a newer file."),
)


def is_gguf(head: bytes) -> bool:
    """True when the first bytes are GGUF's."""
    return head[:4] == b"GGUF"


def is_safetensors(head: bytes, size: int) -> bool:
    """True when the first bytes are a length that fits the file and the start of a JSON object."""
    return len(head) >= 9 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= size - 8


def _is_html(head: bytes) -> bool:
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    return text.startswith((b"<!doctype html", b"<html", b"<head", b"<?xml", b"<body"))


def _is_json(head: bytes) -> bool:
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[")


_TESTS: tuple[tuple[Callable[[bytes], bool], str, str], ...] = (
    (_is_html, "an HTML page, not a model", "The server sent a web page (a login or error page); download it again."),
    (lambda head: head[257:262] == b"ustar", "a tar archive", "Unpack it first: `tar -xf FILE`."),
    (_is_json, "a JSON text", "Give the directory it lies in, or the weight file."),
    (lambda head: not head.strip(b"\0"), "only zero bytes (an unfinished download?)", "Download the file again."),
)


def describe(head: bytes, size: int) -> tuple[str, str]:
    """(what the file is, what to do) from its first bytes (up to HEAD_BYTES) and its size."""
    if size == 0:
        return "an empty file", "Download it again."
    for magic, what, hint in _MAGICS:
        if head.startswith(magic):
            return what, hint
    if is_gguf(head):
        return "a GGUF file", "Give it where a GGUF file is asked for."
    if is_safetensors(head, size):
        return "a safetensors file", "Give the directory with its config.json, or use a GGUF file."
    for matches, what, hint in _TESTS:
        if matches(head):
            return what, hint
    return f"of an unknown kind (it starts with the bytes {head[:8].hex(' ')})", "Give a GGUF or safetensors model."
