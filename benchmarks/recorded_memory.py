"""What recorded passes take of a GPU's memory, one by one, while `groupwise bench step` runs.

    python benchmarks/recorded_memory.py benchmarks/recipes/countdown-small.toml --set model.path=shapes/qwen2.5-1.5b \
        --set stages.0.kl.coefficient=0.02 --steps 3 --warmup 2

All arguments are those of `groupwise bench step`. Needs a GPU.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from groupwise.cli import main
from groupwise.models import recorded
from groupwise.models.fused import GraphRecorder


class ToldRecording(recorded.Recording):
    def __init__(self, layers: Any, like: Any, rotary: Any, room: Any, record: GraphRecorder, *, learns: bool) -> None:
        super().__init__(layers, like, rotary, room, record, learns=learns)
        ours = [part for part in torch.cuda.memory_snapshot() if tuple(part["segment_pool_id"]) == record._pool]
        print(
            f"{like.shape[0]:>7,} tokens, {'both passes' if learns else 'forward alone'}: all recordings have "
            f"{sum(part['total_size'] for part in ours) / 2**30:.2f} GiB in {len(ours)} pieces",
            file=sys.stderr,
            flush=True,
        )


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("recorded_memory: passes are recorded on a GPU alone, and there is none here")
    recorded.Recording = ToldRecording  # type: ignore[misc]
    sys.exit(main(["bench", "step", *sys.argv[1:]]))
