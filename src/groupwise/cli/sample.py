"""Sample several completions of one question, and pick the best.

Examples:
  groupwise sample runs/mine "What is 12 * 34?"
  groupwise sample ./my-model "What is 12 * 34?" --n 16 --best-of majority
"""

from __future__ import annotations

from groupwise.base.harmless import printable
from groupwise.base.outside import json_value
from groupwise.cli.arguments import SEEDS, TASK, Options, argument, json_option, takes
from groupwise.cli.printing import print_json, say
from groupwise.config import ConfigError


@takes(
    argument("model", "a run directory, a hub id, a model folder, a .gguf file, or tiny-qwen3"),
    argument("question", "the user's message"),
    argument("--n", "number of completions", default=4, within="[1, 1e6]"),
    argument("--best-of", "how to pick", default="none", choices=("none", "majority", "verifier")),
    argument("--task", f"the task whose verifier judges the completions: {TASK}"),
    argument("--fields", 'what the verifier needs, as in {"answer": 18} (default: {})', default="{}", metavar="JSON"),
    argument("--checkpoint", "of a run: best, last, or a name (default: best)"),
    argument("--temperature", "sampling temperature; 0: greedy", default=1.0, within="[0, 100]"),
    argument("--max-new-tokens", "tokens per completion (default: 512, or what fits)", type=int, within="[1, 1e7]"),
    argument("--seed", "sampling seed; for tiny-… also the seed of the weights", default=0, within=SEEDS),
    json_option("print a JSON line per completion, and one for the choice"),
)
def run(options: Options) -> None:
    from groupwise.evals.sample import choose, judge, sample
    from groupwise.tasks import make_task

    try:
        fields = json_value(options.fields)
    except ValueError as error:
        raise ConfigError(f"--fields {options.fields!r}: not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ConfigError(f'--fields {options.fields!r}: expected an object, as in {{"answer": 18}}')
    if options.best_of == "verifier" and options.task is None:
        raise ConfigError("--best-of verifier: name the task whose verifier judges, with --task")
    how = {key: getattr(options, key) for key in ("n", "temperature", "max_new_tokens", "seed", "checkpoint")}
    rollouts = sample(options.model, options.question, **how)
    task = None if options.task is None else make_task(options.task, {})
    sampled = judge(rollouts, options.question, task, fields)
    choice = choose(sampled, options.best_of)
    if options.json:
        for entry in sampled:
            print_json(entry.to_json())
        if choice is not None:
            print_json({"best": choice.index, "why": choice.why})
        return
    for index, entry in enumerate(sampled):
        judged = "" if entry.score is None else f", {entry.score.verdict}"
        say(f"--- {index + 1} of {len(sampled)}: {len(entry.rollout.token_ids)} tokens{judged}")
        say(entry.rollout.text)
    if options.best_of != "none":
        say(f"=== best: {choice.index + 1}; {printable(choice.why)}" if choice else "=== none picked")
