"""Mean prompt length of a recipe: its task's problems, encoded by its model's tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from groupwise.config import ConfigError, ModelConfig, Recipe

USUAL_TOKENS = 128
"""Default, if the task is not asked."""
FIRST = 256
"""Number of training problems to encode."""


def mean_prompt_tokens(recipe: Recipe) -> int:
    from groupwise.models.chat import encode_prompt
    from groupwise.tasks.functions import task_of

    problems = task_of(recipe.task).problems("train")[:FIRST]
    if not problems:
        raise ConfigError("--prompt-tokens task: the task has no training problems; give a number")
    tokenizer = _tokenizer(recipe.model)
    return round(sum(len(encode_prompt(tokenizer, problem).token_ids) for problem in problems) / len(problems))


def _tokenizer(model: ModelConfig) -> Any:
    from groupwise.models.load import prepare_template

    tokenizer = _read_tokenizer(model.path)
    prepare_template(tokenizer, model)
    return tokenizer


def _read_tokenizer(named: str) -> Any:
    from transformers import AutoTokenizer

    from groupwise.models.tiny import TINY_NAMES, make_tokenizer

    if named in TINY_NAMES:
        return make_tokenizer()
    path = Path(named).expanduser()
    try:
        if path.suffix.lower() == ".gguf":
            return AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
        return AutoTokenizer.from_pretrained(named, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ConfigError(
            f"--prompt-tokens task: model.path = {named!r} has no readable tokenizer; give a number"
        ) from error
