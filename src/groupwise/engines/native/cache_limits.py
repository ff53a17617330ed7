"""Sizes of the native engine's cache and buffers. Without torch, so that the planner reads the same numbers."""

from __future__ import annotations

BLOCK_TOKENS = 16
PREFILL_TOKENS = 2048
"""Prompt tokens that go through the model at once; a longer prompt is split."""
CACHE_SHARE = 0.8
"""Fraction of the free memory for the cache."""
