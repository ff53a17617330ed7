"""Randomness as a function: a seed is a hash of what it is for, so there is no state to save or to restore."""

from __future__ import annotations

import hashlib
import random


def seed_of(*parts: object) -> int:
    """63 bits that depend on every part and on their order, and on nothing else (not on the process, nor the day)."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "little") >> 1


def shuffled(count: int, *parts: object) -> list[int]:
    """The numbers below `count` in the order that belongs to these parts."""
    order = list(range(count))
    random.Random(seed_of(*parts)).shuffle(order)
    return order
