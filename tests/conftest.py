"""What all tests share: one thread per process, so that two workers do not fight over two cores."""

from __future__ import annotations

import os

# Before torch is imported anywhere, and inherited by the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
