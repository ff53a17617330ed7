"""Write a run's weights, or a model, as a plain Hugging Face folder.

Examples:
  groupwise export runs/mine my-model
  groupwise export runs/mine my-model --checkpoint last
  groupwise export model.gguf my-model
"""

from __future__ import annotations

import argparse
from pathlib import Path

from groupwise.cli.printing import say


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="RUN", help="a run directory, or a model: a .gguf file, a hub id, a folder")
    parser.add_argument("out", type=Path, help="the folder to write")
    parser.add_argument("--checkpoint", help="of a run: best (by held-out pass@1), last, or a name (default: best)")
    parser.add_argument("--ema", action="store_true", help="export the moving average of the weights")


def run(options: argparse.Namespace) -> int:
    from groupwise.api.use_models import export

    export(options.source, options.out, checkpoint=options.checkpoint, use_ema=options.ema)
    say(f"Wrote {options.out}")
    return 0
