"""Export of a run's weights, or of a model, as a plain Hugging Face folder with adapters merged.

The exported model computes what the policy computed. So under `model.quantization` adapters are merged into the
quantized weights, made dense, and not into the original ones: adapters learn to compensate for quantization, and
held-out scores were measured with both together.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from groupwise.config import ConfigError, ModelConfig, Recipe, make_recipe, nearest
from groupwise.models.checkpoint_store import CheckpointStore
from groupwise.models.load import LoadedModel, load_model
from groupwise.models.lora import merged_state_dict
from groupwise.models.policy import Policy, load_policy
from groupwise.runs import layout
from groupwise.runs.reader import Run


def export_run(run_dir: Path, out: Path, *, checkpoint: str = "best", use_ema: bool = False) -> None:
    """Export a checkpoint of a run, chosen as by `load_run`. The folder appears complete or not at all."""
    refuse_full(out)
    policy, _ = load_run(run_dir, make_recipe(Run(run_dir).recipe), checkpoint, use_ema=use_ema)
    save_folder(policy, out)


def export_model(given: str, out: Path) -> None:
    """Export any model that a recipe can name. A GGUF file is dequantized once and then loads quickly."""
    refuse_full(out)
    save_folder(load_model(ModelConfig(path=given), 0), out)


def load_run(run_dir: Path, recipe: Recipe, checkpoint: str, *, use_ema: bool = False) -> tuple[Policy, Path]:
    """Return the policy of a checkpoint ("best", "last" or a name), and the file that its weights were read from.

    If the run evaluated the moving average of its weights, that was the best.
    """
    store = CheckpointStore(run_dir / layout.CHECKPOINTS, recipe.checkpoints.keep_last)
    # Before the model is loaded, so a wrong name fails at once.
    found = _find_checkpoint(store, checkpoint)
    policy = load_policy(recipe)
    tensors, _ = store.load(found)
    is_best_average = checkpoint == "best" and recipe.evaluation.use_ema
    group = "ema" if use_ema or is_best_average else "weights"
    if group not in tensors:
        raise ConfigError(f"--ema: {run_dir} has no moving average; model.ema_decay was 0")
    policy.load_weights(tensors[group])
    return policy, found / f"{group}.safetensors"


def _find_checkpoint(store: CheckpointStore, wanted: str) -> Path:
    if wanted == "best":
        path = store.tagged("best")
        missing = "the run has no best checkpoint: it was never evaluated, or keep_best is off; use --checkpoint last"
    elif wanted == "last":
        path = store.newest_valid()
        missing = f"{store.root} holds no valid checkpoint"
    else:
        path = store.root / wanted if wanted in store.names() else None
        missing = f"no checkpoint {wanted!r} in {store.root}; {nearest(wanted, store.names())}"
    if path is None:
        raise ConfigError(missing)
    return path


def save_folder(policy: Policy | LoadedModel, out: Path) -> None:
    with new_folder(out) as folder:
        # An explicit state dict: merged, and without the names that adapters insert.
        policy.model.save_pretrained(folder, state_dict=merged_state_dict(policy.model))
        policy.tokenizer.save_pretrained(folder)


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield a folder to write to. It becomes `out` at the end, which appears complete or not at all."""
    refuse_full(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", suffix=".partial", dir=out.parent) as name:
        folder = Path(name) / "model"
        folder.mkdir()
        yield folder
        os.replace(folder, out)  # `out` is missing or an empty folder


def refuse_full(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out}: exists and is not an empty folder; choose a new one")
