"""Sizes that decide how the learner uses memory. Without torch, so that the planner reads the same numbers."""

from __future__ import annotations

KEPT_SUMS_SHARE = 1 / 16
"""Fraction of a GPU's memory below which gradient sums are kept between updates."""
RECORDED_SHARE = 1 / 8
"""Fraction of the device's memory for what layers keep of one recorded pack. It is not released between steps."""
CHUNK_SHARE = 1 / 128
"""Fraction of a GPU's memory for the fp32 logits of a chunk."""
EXCHANGE_BYTES = 256 << 20
"""Bytes set aside at a time when weights change places: few launches, little memory."""
MOMENT_BLOCK = 256
"""Values of an 8-bit moment that share a scale."""


def capacity(tokens: int) -> int:
    """Return the size that a pack is filled up to, at most a quarter more; packs of a step are about equally large."""
    return -(-tokens // grain(tokens)) * grain(tokens)


def grain(tokens: int) -> int:
    """Return the step between sizes of recorded packs."""
    return max(256, 1 << max(0, (tokens - 1).bit_length() - 3))
