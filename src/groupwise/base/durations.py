"""Durations as people read them."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Return `seconds` in its two largest units: 45s, 3m20s, 2h05m, 3d04h; "?" when it is not finite."""
    if not seconds < float("inf"):
        return "?"
    whole = round(max(0.0, seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"
