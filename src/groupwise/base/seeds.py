"""Randomness without state: a seed is a hash of its purpose, so there is nothing to save or to restore."""

from __future__ import annotations

import hashlib
import random


def seed_of(*parts: object) -> int:
    """Return 63 bits that depend only on the parts and their order, not on the process or the time."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "little") >> 1


def shuffled(count: int, *parts: object) -> list[int]:
    """Return the numbers below `count`, shuffled by a seed of `parts`."""
    order = list(range(count))
    random.Random(seed_of(*parts)).shuffle(order)
    return order
