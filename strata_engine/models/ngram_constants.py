"""Constants of hashed n-gram tables where a checkpoint does not store them. No torch.

Source: models.md 3.8, equal to the published values of Qwen3.8-Flash-Next (tests). Plain integers throughout: the
multipliers have 45 bits and no float may see them.
"""

from __future__ import annotations

from itertools import count, islice

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15  # splitmix64, Steele, Lea and Flood 2014
_LAYER_STEP = 10007


def make_multipliers(vocab_size: int, places: int, seed: int, index: int) -> tuple[int, ...]:
    """Odd numbers whose product with any token fits 63 bits. `index`: number of the table among those of the model."""
    half = max(1, ((1 << 63) - 1) // max(1, vocab_size) // 2)
    start = seed + _LAYER_STEP * index
    return tuple(2 * (_splitmix(start + _GAMMA * (i + 1)) % half) + 1 for i in range(places))


def _splitmix(value: int) -> int:
    value = (value + _GAMMA) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def make_sizes(base: int, heads: int, index: int) -> tuple[int, ...]:
    """Consecutive primes from `base` on; table `index` takes those after the tables before it."""
    primes = (n for n in count(base) if _is_prime(n))
    return tuple(islice(primes, index * heads, (index + 1) * heads))


def _is_prime(n: int) -> bool:
    if n < 4 or n % 2 == 0:
        return n in (2, 3)
    return all(n % d for d in range(3, int(n**0.5) + 1, 2))


def make_offsets(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Where the rows of each hash function begin."""
    return tuple(sum(sizes[:j]) for j in range(len(sizes)))
