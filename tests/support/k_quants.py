"""Plain round-to-nearest encoders of the 256-element K formats, for test files (the gguf package only decodes them)."""

from __future__ import annotations

import numpy as np


def _f16(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two bytes of each value as f16, and the value those bytes mean."""
    half = values.astype(np.float16)
    return half.view(np.uint8).reshape(*values.shape, 2), half.astype(np.float32)


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """numerator / denominator, 0 where the denominator is 0."""
    numerator, denominator = np.broadcast_arrays(numerator, denominator)
    return np.divide(numerator, denominator, out=np.zeros(numerator.shape, np.float32), where=denominator != 0)


def _scales_6bit(scale: np.ndarray, minimum: np.ndarray) -> np.ndarray:
    """Eight 6-bit scales and eight 6-bit minimums in 12 bytes."""
    out = np.zeros((*scale.shape[:-1], 12), np.uint8)
    out[..., 0:4] = (scale[..., :4] & 63) | (scale[..., 4:] >> 4) << 6
    out[..., 4:8] = (minimum[..., :4] & 63) | (minimum[..., 4:] >> 4) << 6
    out[..., 8:12] = (scale[..., 4:] & 15) | (minimum[..., 4:] & 15) << 4
    return out


def _asymmetric(array: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
    """(header bytes: d, dmin, scales; codes [.., 8, 32]) of Q4_K (top 15) and Q5_K (top 31)."""
    x = array.reshape(*array.shape[:-1], -1, 8, 32)
    low = np.minimum(x.min(-1), 0)
    span = (x.max(-1).clip(min=0) - low) / top
    d_bytes, d = _f16(span.max(-1) / 63)
    m_bytes, dmin = _f16(-low.min(-1) / 63)
    scale = np.rint(_ratio(span, d[..., None])).clip(0, 63).astype(np.uint8)
    minimum = np.rint(_ratio(-low, dmin[..., None])).clip(0, 63).astype(np.uint8)
    step, offset = d[..., None] * scale, dmin[..., None] * minimum
    codes = np.rint(_ratio(x + offset[..., None], step[..., None])).clip(0, top).astype(np.uint8)
    return np.concatenate([d_bytes, m_bytes, _scales_6bit(scale, minimum)], -1), codes


def _nibbles(codes: np.ndarray) -> np.ndarray:
    """[.., 8, 32] 4-bit codes -> 128 bytes: pairs of sub-blocks share bytes, the even one in the low half."""
    return (codes[..., 0::2, :] | codes[..., 1::2, :] << 4).reshape(*codes.shape[:-2], 128)


def pack_q4_k(array: np.ndarray) -> np.ndarray:
    """f32 [.., n * 256] -> u8 [.., n * 144]."""
    header, codes = _asymmetric(array, 15)
    return np.concatenate([header, _nibbles(codes)], -1).reshape(*array.shape[:-1], -1)


def pack_q5_k(array: np.ndarray) -> np.ndarray:
    """f32 [.., n * 256] -> u8 [.., n * 176]."""
    header, codes = _asymmetric(array, 31)
    high = np.zeros((*codes.shape[:-2], 32), np.uint8)
    for j in range(8):
        high |= (codes[..., j, :] >> 4) << j
    return np.concatenate([header, high, _nibbles(codes & 15)], -1).reshape(*array.shape[:-1], -1)


def pack_q6_k(array: np.ndarray) -> np.ndarray:
    """f32 [.., n * 256] -> u8 [.., n * 210]."""
    x = array.reshape(*array.shape[:-1], -1, 16, 16)
    span = np.abs(x).max(-1) / 31
    d_bytes, d = _f16(span.max(-1) / 127)
    scale = np.rint(_ratio(span, d[..., None])).clip(-128, 127).astype(np.int8)
    codes = np.rint(_ratio(x, (d[..., None] * scale)[..., None])).clip(-32, 31) + 32
    q = codes.astype(np.uint8).reshape(*codes.shape[:-2], 2, 4, 32)  # halves of 128, quarters of 32
    low = np.stack([(q[..., 0, :] & 15) | (q[..., 2, :] & 15) << 4, (q[..., 1, :] & 15) | (q[..., 3, :] & 15) << 4], -2)
    high = q[..., 0, :] >> 4 | (q[..., 1, :] >> 4) << 2 | (q[..., 2, :] >> 4) << 4 | (q[..., 3, :] >> 4) << 6
    parts = [low.reshape(*low.shape[:-3], 128), high.reshape(*high.shape[:-2], 64), scale.view(np.uint8), d_bytes]
    return np.concatenate(parts, -1).reshape(*array.shape[:-1], -1)


K_PACKERS = {"Q4_K": pack_q4_k, "Q5_K": pack_q5_k, "Q6_K": pack_q6_k}
