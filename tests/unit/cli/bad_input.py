"""A corpus of input that cannot be used: commands, recipes, rows and environments, and what must be said about each.

`BAD_INPUT` is a list that tests and benchmarks read; `tried` runs one of them in this process, in a folder of its own.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from groupwise.cli import main

RECIPE = """name = "x"
model.path = "tiny-qwen3"
task.name = "countdown"
[[stages]]
algorithm = "grpo"
steps = 2
problems_per_step = 4
rollouts_per_problem = 4
"""
HOSTS = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


@dataclass(frozen=True)
class BadInput:
    command: str
    """The arguments as typed in a shell."""
    says: str
    """A part of what must be printed."""
    files: Mapping[str, str | bytes | None] = field(default_factory=dict)
    """The content of each file in the folder; None is a FIFO, and a name that ends in "/" is a folder."""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        extra = [f"{name}={value}" for name, value in self.environment.items()]
        extra += [f"<{value!r:.40}" for value in self.files.values()]
        return " ".join([*extra, self.command])[:100]


@dataclass(frozen=True)
class Outcome:
    status: int | None
    """The exit status; None if an exception was raised that a person would see as a traceback."""
    printed: str


def tried(bad: BadInput, folder: Path) -> Outcome:
    """Run the command in `folder`."""
    for name, content in bad.files.items():
        path = folder / name
        if name.endswith("/"):
            path.mkdir()
        elif content is None:
            os.mkfifo(path)
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed), _inside(folder, bad.environment):
        try:
            return Outcome(main(shlex.split(bad.command)), printed.getvalue())
        except SystemExit as ended:
            return Outcome(ended.code if isinstance(ended.code, int) else 1, printed.getvalue())
        except Exception:  # noqa: BLE001 -- what must not happen
            return Outcome(None, printed.getvalue() + traceback.format_exc())


@contextlib.contextmanager
def _inside(folder: Path, environment: Mapping[str, str]) -> Iterator[None]:
    with contextlib.chdir(folder), mock.patch.dict(os.environ, environment):
        yield


def _recipe(content: str | bytes, says: str) -> BadInput:
    return BadInput("train x.toml", says, {"x.toml": content})


def _set(override: str, says: str) -> BadInput:
    return BadInput(f"train x.toml --set {shlex.quote(override)}", says, {"x.toml": RECIPE})


def _row(task: str, content: str | bytes, says: str) -> BadInput:
    return BadInput(f"verify {task} rows.jsonl", says, {"rows.jsonl": content})


def _train_row(content: str | bytes | None, says: str) -> BadInput:
    options = "--set train=rows.jsonl --set held_out_share=0.1"
    return BadInput(f"validate jsonl {options}", says, {"rows.jsonl": content})


RECIPES_THAT_CANNOT_BE_READ = [
    BadInput("train none.toml", "no recipe at none.toml; `groupwise recipes` lists"),
    BadInput("train dmeo", "no recipe named 'dmeo'; did you mean 'demo'?"),
    BadInput("train ''", "no recipe named ''"),
    BadInput("train x", "x is a folder, not a regular file", {"x/": ""}),
    BadInput("train x.toml", "x.toml is a folder, not a regular file", {"x.toml/": ""}),
    BadInput("train x.toml", "x.toml is a FIFO, not a regular file", {"x.toml": None}),
    BadInput("train /dev/zero", "/dev/zero is a device, not a regular file"),
    _recipe("", "x.toml is empty"),
    _recipe("\ufeff \n", "x.toml is empty"),
    _recipe(b"#" * (1 << 20) + b"\n", "at most 1,048,576 are read"),
    _recipe("x = " + 5000 * "[" + 5000 * "]", "nested more than 100 deep"),
    _recipe("x = " + 3000 * "{a = " + "1" + 3000 * "}", "nested more than 100 deep"),
    _recipe(5000 * "a." + "a = 1", "a key of more than 100 parts"),
    _recipe("seed = " + 5000 * "1", "an integer of more than 308 digits"),
    _recipe(RECIPE.encode("utf-16"), "is not UTF-8 (byte 0); save it as UTF-8"),
    _recipe('name = "é"'.encode("latin-1"), "is not UTF-8 (byte 8)"),
    _recipe(bytes(100), "x.toml is not valid TOML"),
    _recipe('{"name": "x"}', "x.toml is not valid TOML"),
    _recipe("name = 'x'\nname = 'y'\n", "a key is given twice (at line 2"),
    _recipe("[model]\n[model]\n", "Cannot declare ('model',) twice (at line 2"),
    _recipe("name = 'x'", "stages: a recipe needs at least one [[stages]] table"),
    _recipe("stages = [3]", "stages.0: expected a table, got 3"),
    _recipe(RECIPE.replace("name", "nmae", 1), "nmae: unknown key; did you mean 'name'?"),
    _recipe(RECIPE.replace("steps = 2\n", "", 1), "stages.0.steps: missing; set it to a whole number"),
]
VALUES = [
    _set("seed", "write it as key=value, for example seed=1"),
    _set("=1", "write it as key=value"),
    _set("model..path=x", "write it as key=value"),
    _set("task.options" + 200 * ".a" + "=1", "write it as key=value"),
    _set("seed=1\nname='y'", "more than one key; give each a --set of its own"),
    _set("description=\udcff", "not UTF-8"),
    _set("seed=1180591620717411303424", "seed = 1180591620717411303424: must be from 0 to 9,007,199,254,740,992"),
    _set("seed=" + 5000 * "9", "expected a whole number"),
    _set("seed=true", "seed = True: expected a whole number, got bool"),
    _set("stages.0.steps=1e20", "stages.0.steps = 1e+20: expected a whole number, got float"),
    _set("stages.0.steps=100000000000000000000", "must be from 1 to 10,000,000"),
    _set("stages.0.steps=0", "steps = 0: must be from 1 to"),
    _set("stages.0.rollouts_per_problem=1000000000", "must be from 1 to 100,000"),
    _set("stages.0.optimizer.learning_rate=inf", "learning_rate = inf: must be above 0 and at most 1"),
    _set("stages.0.optimizer.learning_rate=nan", "learning_rate = nan: must be above 0 and at most 1"),
    _set("stages.0.optimizer.learning_rate=1e30", "learning_rate = 1e+30: must be above 0 and at most 1"),
    _set("stages.0.optimizer.weight_decay=inf", "weight_decay = inf: must be from 0 to 100"),
    _set("stages.0.loss.clip_low=5.0", "clip_low = 5.0: must be from 0 to 1, or inf (off)"),
    _set("stages.0.sampling.top_p=0", "top_p = 0.0: must be above 0 and at most 1"),
    _set("stages.0.sampling.temperature=-1", "temperature = -1.0: must be from 0 to 100"),
    _set("stages.0.sampling.max_new_tokens=-5", "max_new_tokens = -5: must be from 1"),
    _set("stages.0.sampling.stop_strings=['']", "stop_strings.0 = '': every text contains it"),
    _set("evaluation.temperature=nan", "temperature = nan: must be from 0 to 100"),
    _set("verifier.seconds=inf", "seconds = inf: must be above 0"),
    _set("name=a/b", "name = 'a/b': use 1 to 48 letters"),
    _set("stages.0.lr=1e-5", "did you mean 'stages.0.optimizer.learning_rate'?"),
    _set("stages.0.kl.beta=0.1", "did you mean 'stages.0.kl.coefficient'?"),
    _set("stages.0.group_size=8", "'stages.0.rollouts_per_problem'?"),
    _set("model.dtype=bf16", "did you mean 'bfloat16'?"),
    _set("model.name=x", "model.name: unknown key; known: chat_template_options"),
    _set("model=x", "model: expected a table, got 'x'; its keys: path"),
    _set("stages.5.steps=1", "stages.5: no such stage; known: 0"),
    _set("stages.0.algorithm=ppo", "did you mean 'grpo'?"),
    _set("model.device=gpu", "model.device = 'gpu': unknown; did you mean 'cuda'?"),
]
ROWS = [
    _row("arithmetic", "", "rows.jsonl: no rows"),
    _row("arithmetic", "\n\n", "rows.jsonl: no rows"),
    BadInput("verify arithmetic none.jsonl", "none.jsonl: no such file"),
    BadInput("verify arithmetic rows.jsonl", "rows.jsonl is a FIFO, not a regular file", {"rows.jsonl": None}),
    BadInput("verify arithmetic rows.jsonl", "rows.jsonl is a folder, not a regular file", {"rows.jsonl/": ""}),
    _row("arithmetic", "\n[1]\n", "rows.jsonl, row 2: expected an object, got a list"),
    _row("arithmetic", "{", "rows.jsonl, row 1: not valid JSON"),
    _row("arithmetic", b'{"completion": "\xff"}', "row 1: not valid JSON: 'utf-8' codec"),
    _row("arithmetic", 20_000 * "[", "row 1: not valid JSON: nested more than 100 deep"),
    _row("arithmetic", '{"answer": ' + 5000 * "1" + "}", "row 1: not valid JSON: an integer of 5,000 digits"),
    _row("arithmetic", '{"completion": "\\ud800", "answer": 1}', "row 1: '\\ud800' is half of a character"),
    _row("arithmetic", '{"completion": "x", "answer": NaN}', "row 1: not valid JSON: NaN"),
    _row(
        "arithmetic",
        '{"completion": "x", "answer": 1, "answer": 2}',
        "row 1: not valid JSON: the key 'answer' is given",
    ),
    _row("arithmetic", '{"completion": 5, "answer": 1}', "row 1: 'completion' is 5, expected a string"),
    _row("arithmetic", '{"answer": 1}', "row 1: no key 'completion'; it has answer"),
    _row("jsonl", '{"completion": "x", "answer": 1e400}', "row 1: 'answer' is inf"),
    _row("jsonl", '{"completion": "x", "id": "a"}', "row 1: no key 'answer'; it has completion, id; and its id 'a'"),
    _row("jsonl", '{"completion": "x", "id": [1], "answer": {}}', "row 1: 'answer' is an object, expected a string"),
    _row("countdown", '{"completion": "x", "numbers": [1, 2], "target": "x"}', "row 1: 'target' is x, expected an"),
    _row("code-jsonl", '{"completion": "x", "tests": 5}', "row 1: 'tests' is 5: expected Python text"),
    _row("json-schema", '{"completion": "x", "schema": 3}', "row 1: 'schema' is 3, expected a JSON schema"),
    _row("sql-jsonl", '{"completion": "x", "gold": "SELECT 1", "database": "no.db"}', "no.db: cannot be read"),
    _train_row(None, "task.options.train = 'rows.jsonl': cannot be read: rows.jsonl is a FIFO"),
    _train_row("", "task.options.train = 'rows.jsonl': no rows"),
    _train_row('{"prompt": "a", "answer": 1}\n{"prompt": "\\udc00", "answer": 1}', "row 2: '\\udc00' is half of a"),
    _train_row('{"prompt": 1, "answer": 1}', "rows.jsonl, row 1: 'prompt' is a number, expected a string"),
    _train_row('{"prompt": "", "answer": 1}', "rows.jsonl, row 1: 'prompt' is empty"),
    _train_row('{"prompt": "a"}', "rows.jsonl, row 1: no key 'answer'; it has prompt"),
    BadInput("validate jsonl --set train=~nobody-here/a.jsonl --set held_out_share=0.1", "no such file"),
]
COMMANDS = [
    *[
        BadInput(f"{command}={value}", f"{command.split()[-1]} = {shown}: must be ")
        for command in (
            "verify arithmetic x.jsonl --seconds",
            "sample tiny-qwen3 q --temperature",
            "plan demo --mean-tokens",
        )
        for value, shown in (("nan", "nan"), ("inf", "inf"), ("-1", "-1.0"), ("1e300", "1e+300"))
    ],
    BadInput("verify arithmetic x.jsonl --seconds x", "argument --seconds: invalid float value: 'x'"),
    BadInput("verify arithmetic x.jsonl --workers 0", "--workers = 0: must be from 1 to 256"),
    BadInput("verify arithmetic x.jsonl --memory-mb 0", "--memory-mb = 0: must be from 64"),
    BadInput("verify arithmetic ''", "argument file: is empty; give a path"),
    BadInput("validate arithmetic --limit -1", "--limit = -1: must be from 0"),
    BadInput("validate arithmetic --set levels=[9]", "levels.0 = 9: must be from 1 to 5"),
    BadInput("validate arithmetics", "did you mean 'arithmetic'?"),
    BadInput("validate nowhere:Task", "cannot import 'nowhere'"),
    BadInput("watch --port 70000", "--port = 70000: must be from 0 to 65,535"),
    BadInput("watch none", "no folder at none"),
    BadInput("plan demo --ranks 99999999999999999999", "--ranks = 99999999999999999999: must be from 1 to 100,000"),
    BadInput("plan demo --gpu h200 --prompt-tokens 1,2", "expected one number, or task"),
    BadInput("plan demo --gpu nosuch", "--gpu 'nosuch': unknown"),
    BadInput("eval none --task arithmetic --n 0", "--n = 0: must be from 1"),
    BadInput("eval none --task arithmetic --k 0", "--k = 0: must be from 1"),
    BadInput("eval none --task arithmetic --k a", "--k 'a': expected numbers, as in 1,4,8"),
    BadInput("eval none --task arithmetic --seed -1", "--seed = -1: must be from 0"),
    BadInput("sample tiny-qwen3 q --fields [", "--fields '[': not JSON"),
    BadInput("reach none --scores nan", "--scores = nan: must be above 0 and at most 1"),
    BadInput("reach none --scores ,", "--scores ',': expected numbers, as in 0.3,0.4"),
    BadInput("report none", "no run at none"),
    BadInput("doctor file", "no run at file", {"file": ""}),
    BadInput("audit none --sample 0", "--sample = 0: must be from 1"),
    BadInput("compare none none", "neither a result of `groupwise eval` nor a run directory"),
    BadInput("merge none --weights nan", "--weights = nan: must be from"),
    BadInput("bench step demo --steps 0", "--steps = 0: must be from 1"),
    BadInput("bench step demo --against tlr", "argument --against: invalid choice: 'tlr'"),
    BadInput("bench step demo --against-python x", "--against-python is for the library of --against"),
    BadInput("bench step demo --against trl --against-python none", "--against-python 'none': cannot be run"),
    BadInput("bench step demo --against trl --against-set x", "--against-set 'x': write it as key=value"),
    BadInput("bench step demo --against trl --memory-gib 8", "--memory-gib changes groupwise alone"),
    BadInput("bench step demo --against trl --steps 1", "no step is left after the warm-up"),
    BadInput(
        "bench step demo --against trl --against-set per_device_train_batch_size=7", "must divide the 256 completions"
    ),
    BadInput("bench engine --against vllm --mixed", "--mixed changes groupwise alone"),
    BadInput("bench engine --against vllm --engines native,reference", "with --against, name one engine"),
    BadInput("bench update --sequences 0", "--sequences = 0: must be from 1"),
    BadInput("sweep nosuch", "no sweep named 'nosuch'"),
    BadInput("sweep format-copy-study --jobs 99999999999999", "--jobs = '99999999999999': expected a number from 1"),
    BadInput("sweep format-copy-study --max-minutes nan", "--max-minutes = nan: must be above 0"),
    BadInput("new x --folder file", "file: File exists", {"file": ""}),
    BadInput("sandbox run none.py", "none.py"),
    BadInput("demo --seed -1", "--seed = -1: must be from 0"),
    BadInput("demo --run-dir ''", "argument --run-dir: is empty; give a path"),
    BadInput("demo --run-dir file", "file is a file, not a folder", {"file": ""}),
    BadInput("train --resume none", "none has no run to resume"),
    BadInput("train demo --memory-gib nan", "--memory-gib = nan: must be above 0"),
    BadInput("train demo --ray --ray-ranks 0", "--ray-ranks = 0: must be from 1"),
    BadInput("trian demo", "no command 'trian'; did you mean 'train'?"),
]
RANKS = [
    BadInput("train demo", says, environment=environment)
    for environment, says in (
        ({"RANK": "1", "WORLD_SIZE": "2"}, "WORLD_SIZE = 2, but there is no MASTER_ADDR and no MASTER_PORT"),
        ({"WORLD_SIZE": "2"} | HOSTS, "WORLD_SIZE = 2, but there is no RANK; start the ranks with torchrun"),
        ({"RANK": "2", "WORLD_SIZE": "2"} | HOSTS, "RANK = 2: must be from 0 to 1"),
        ({"RANK": "x", "WORLD_SIZE": "2"} | HOSTS, "RANK = 'x': expected a whole number"),
        ({"RANK": "-1", "WORLD_SIZE": "2"} | HOSTS, "RANK = '-1': expected a whole number"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE = 'two': expected a whole number"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE = 0: must be from 1"),
        ({"RANK": "0", "WORLD_SIZE": "2"} | HOSTS | {"MASTER_PORT": "99999"}, "MASTER_PORT = 99999: must be from 1 to"),
    )
]
BAD_INPUT = [*RECIPES_THAT_CANNOT_BE_READ, *VALUES, *ROWS, *COMMANDS, *RANKS]
