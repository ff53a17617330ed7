"""Average Hugging Face model folders, weight by weight.

Examples:
  groupwise merge ./a ./b --weights 0.7 0.3 --out ./merged
"""

from __future__ import annotations

from pathlib import Path

from groupwise.cli.arguments import Options, argument, takes
from groupwise.cli.printing import say


@takes(
    argument("folders", "folders with models of the same architecture", type=Path, nargs="+"),
    argument(
        "--weights", "one per folder; they must sum to 1", type=float, nargs="+", required=True, within="[-1e6, 1e6]"
    ),
    argument("--out", "the folder to write: a new or an empty one", default=Path("merged")),
)
def run(options: Options) -> None:
    from groupwise.models.merge import merge_folders

    merge_folders(options.folders, options.weights, options.out)
    say(f"Wrote {options.out}")
