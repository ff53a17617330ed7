"""Model folders made to run code, to read outside of themselves, or to exhaust whoever loads them.

`HOSTILE` has a name, what to do to the folder of a small model, and a part of what loading it must say. Each would
leave the file `MARK` beside the folder if code of it ran.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

MARK = "code-has-run"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
DEEP = "[" * 20_000 + "]" * 20_000


class _Touch:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self._path,)


def _edit(file: str, **changes: Any) -> Callable[[Path], None]:
    def build(folder: Path) -> None:
        table = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
        (folder / file).write_text(json.dumps(table | changes))

    return build


def _text(file: str, text: str | bytes) -> Callable[[Path], None]:
    def build(folder: Path) -> None:
        (folder / file).write_bytes(text.encode() if isinstance(text, str) else text)

    return build


def _without(*files: str) -> Callable[[Path], None]:
    def build(folder: Path) -> None:
        for file in files:
            (folder / file).unlink()

    return build


def _fifo(file: str) -> Callable[[Path], None]:
    def build(folder: Path) -> None:
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).unlink(missing_ok=True)
        os.mkfifo(folder / file)

    return build


def _link(file: str, target: str) -> Callable[[Path], None]:
    def build(folder: Path) -> None:
        (folder / file).unlink(missing_ok=True)
        (folder / file).symlink_to(target)

    return build


def _sparse(file: str) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / file, 1 << 40)


def _indexed(name: str, is_pickled: bool = False, index: str = INDEX) -> Callable[[Path], None]:
    """All weights in the file `name`, relative to the folder, and an index that says so."""

    def build(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        target = folder / name
        if is_pickled:
            torch.save(tensors, target)
            (folder / WEIGHTS).unlink()
        else:
            (folder / WEIGHTS).rename(target)
        (folder / "empty.safetensors").touch()
        shown = str(target) if name.startswith("/") else name
        (folder / index).write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(tensors, shown)}))

    return build


def _absolute(folder: Path) -> None:
    _indexed(str(folder.parent / "elsewhere.safetensors"))(folder)


def _index_of(weight_map: Any) -> Callable[[Path], None]:
    def build(folder: Path) -> None:
        (folder / WEIGHTS).rename(folder / "model-1.safetensors")
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))

    return build


def _malicious(file: str) -> Callable[[Path], None]:
    def build(folder: Path) -> None:
        (folder / file).write_bytes(pickle.dumps(_Touch(folder.parent / MARK)))

    return build


def _remote(file: str, **changes: Any) -> Callable[[Path], None]:
    def build(folder: Path) -> None:
        (folder / "own.py").write_text(f"open({str(folder.parent / MARK)!r}, 'w')\n")
        _edit(file, **changes)(folder)

    return build


def _both(*builds: Callable[[Path], None]) -> Callable[[Path], None]:
    def build(folder: Path) -> None:
        for each in builds:
            each(folder)

    return build


PICKLED = r"names 'pytorch_model\.bin', .*Pickled weights can run code.*convert them to safetensors"
HOSTILE: list[tuple[str, Callable[[Path], None], str]] = [
    ("index of pickled weights", _indexed("pytorch_model.bin", is_pickled=True), PICKLED),
    (
        "index of a malicious pickle",
        _both(_indexed("pytorch_model.bin", is_pickled=True), _malicious("pytorch_model.bin")),
        PICKLED,
    ),
    ("index that points out of the folder", _indexed("../elsewhere.safetensors"), "outside of the folder"),
    ("index with an absolute path", _absolute, "outside of the folder"),
    ("index without a table", _index_of([1, 2]), "weight_map is not a table"),
    ("index of numbers", _index_of({"a": 5}), "weight_map is not a table"),
    ("index of a file that is missing", _index_of({"a": "gone.safetensors"}), r"gone\.safetensors"),
    ("index that is a list", _both(_index_of({}), _text(INDEX, "[]")), "not a JSON object"),
    ("deep index", _both(_index_of({}), _text(INDEX, DEEP)), "nested more than 100 deep"),
    ("pickle named as safetensors", _malicious(WEIGHTS), "cannot be loaded"),
    ("safetensors with a header of 2^60 bytes", _text(WEIGHTS, b"\0" * 7 + b"\x10{}"), "cannot be loaded"),
    ("FIFO as weights", _fifo(WEIGHTS), "is a FIFO, not a regular file"),
    (
        "pickled weights alone",
        _both(_indexed("pytorch_model.bin", is_pickled=True), _without(INDEX, "empty.safetensors")),
        "pickled",
    ),
    (
        "weights that the configuration names",
        _both(_malicious("adapter_model.bin"), _edit("config.json", transformers_weights="adapter_model.bin")),
        "transformers_weights = 'adapter_model.bin': not a safetensors file",
    ),
    ("adapter beside the model", _text("adapter_config.json", "{}"), "contains an adapter beside the model"),
    ("deep configuration", _text("config.json", DEEP), "nested more than 100 deep"),
    ("configuration of 400 digits", _text("config.json", f'{{"vocab_size": {"9" * 400}}}'), "integer of 400 digits"),
    ("configuration of 5,000 digits", _text("config.json", f'{{"vocab_size": {"9" * 5000}}}'), "of 5,000 digits"),
    ("configuration that is a list", _text("config.json", "[]"), "not a JSON object"),
    ("empty configuration", _text("config.json", ""), r"config\.json cannot be read"),
    ("configuration in another encoding", _text("config.json", b"\xff\xfe{}"), r"config\.json cannot be read"),
    ("configuration of a terabyte", _sparse("config.json"), "are read"),
    ("a billion layers", _edit("config.json", num_hidden_layers=10**9), "num_hidden_layers = 1000000000"),
    ("device as configuration of the tokenizer", _link("tokenizer_config.json", "/dev/zero"), "is a device"),
    ("FIFO as tokenizer", _fifo("tokenizer.json"), "is a FIFO"),
    ("deep tokenizer", _text("tokenizer.json", DEEP), "nested more than 100 deep"),
    ("dangling link as tokenizer", _link("tokenizer.json", "nowhere"), r"tokenizer\.json"),
    ("FIFO as chat template", _fifo("chat_template.jinja"), "is a FIFO"),
    ("FIFO as another chat template", _fifo("additional_chat_templates/tools.jinja"), "is a FIFO"),
    (
        "model of its own code",
        _remote("config.json", model_type="own", auto_map={"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"}),
        "code in the model's files, which is never run",
    ),
    (
        "tokenizer of its own code",
        _remote("tokenizer_config.json", tokenizer_class="Own", auto_map={"AutoTokenizer": ["own.T", None]}),
        "",
    ),
    ("generation settings that are a FIFO", _fifo("generation_config.json"), "is a FIFO"),
]
