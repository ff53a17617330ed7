"""Versions of the software that a run's numbers depend on."""

from __future__ import annotations

import platform

import torch
import transformers

import groupwise


def versions() -> dict[str, str]:
    return {
        "groupwise": groupwise.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
