"""A model folder with the sizes of a known model and random weights, to measure what does not depend on the weights.

python benchmarks/make_shape.py qwen2.5-1.5b shapes/qwen2.5-1.5b
"""

from __future__ import annotations

import sys
from pathlib import Path

from groupwise.bench.engine_speed import make_shape
from groupwise.models.tiny import make_tokenizer


def main(name: str, folder: str) -> None:
    model = make_shape(name)
    tokenizer = make_tokenizer()
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(Path(folder))
    tokenizer.save_pretrained(Path(folder))
    print(f"{folder}: {sum(weight.numel() for weight in model.parameters()) / 1e6:,.0f} M parameters, {model.dtype}")


if __name__ == "__main__":
    main(*sys.argv[1:3])
