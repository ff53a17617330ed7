"""Average Hugging Face model folders, weight by weight.

Examples:
  groupwise merge ./a ./b --weights 0.7 0.3 --out ./merged
"""

from __future__ import annotations

import argparse
from pathlib import Path

from groupwise.cli.printing import say


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", type=Path, nargs="+", help="folders with models of the same architecture")
    parser.add_argument("--weights", type=float, nargs="+", required=True, help="one per folder; they must sum to 1")
    parser.add_argument("--out", type=Path, default=Path("merged"), help="the folder to write: a new or an empty one")


def run(options: argparse.Namespace) -> int:
    from groupwise.models.merge import merge_folders

    merge_folders(options.folders, options.weights, options.out)
    say(f"Wrote {options.out}")
    return 0
