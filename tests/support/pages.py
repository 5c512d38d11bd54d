"""How the native kernels arrange keys inside a page, for whoever fills or reads a cache without them.

A page whose tokens are whole blocks of 16 keeps the keys of a head as [block, D, 16]; any other page as rows. Values
are always rows. The tensor's shape stays [P, K, page_tokens, D].
"""

from __future__ import annotations

from torch import Tensor

KEY_BLOCK = 16  # KEY_BLOCK of kernels/cpu/core/kernels.h


def block_keys(keys: Tensor) -> Tensor:
    """A copy of keys [P, K, page_tokens, D] in rows, arranged as the native kernels read them."""
    pages, heads, tokens, width = keys.shape
    if tokens % KEY_BLOCK:
        return keys.clone()
    blocks = keys.reshape(pages, heads, tokens // KEY_BLOCK, KEY_BLOCK, width)
    return blocks.transpose(3, 4).contiguous().view(keys.shape)


def key_rows(keys: Tensor) -> Tensor:
    """The other way: a copy of keys that the native kernels stored, as rows."""
    pages, heads, tokens, width = keys.shape
    if tokens % KEY_BLOCK:
        return keys.clone()
    blocks = keys.reshape(pages, heads, tokens // KEY_BLOCK, width, KEY_BLOCK)
    return blocks.transpose(3, 4).contiguous().view(keys.shape)
