"""Write a run's weights, or a model, as a plain Hugging Face folder.

Examples:
  groupwise export runs/mine my-model
  groupwise export runs/mine my-model --checkpoint last
  groupwise export model.gguf my-model
"""

from __future__ import annotations

from pathlib import Path

from groupwise.cli.arguments import Options, argument, takes
from groupwise.cli.printing import say


@takes(
    argument("source", "a run directory, or a model: a .gguf file, a hub id, a folder", metavar="RUN"),
    argument("out", "the folder to write", type=Path),
    argument("--checkpoint", "of a run: best (by held-out pass@1), last, or a name (default: best)"),
    argument("--ema", "export the moving average of the weights", default=False),
)
def run(options: Options) -> None:
    from groupwise.api.use_runs import export

    say(f"Wrote {export(options.source, options.out, checkpoint=options.checkpoint, use_ema=options.ema)}")
