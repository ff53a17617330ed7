"""Work handed to another Python: what goes there and comes back, and what is said when it cannot."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from groupwise.bench.side_by_side import Other, OtherFailed, apart, candidates
from groupwise.config import ConfigError

STUB = f"""#!{sys.executable} -S
import json, sys
_, script, work_path, result_path = sys.argv
work = json.load(open(work_path))
if work["settings"].get("dtype") == "bfloat16":
    print("warming up\\n\\nno bfloat16 here")
    sys.exit(3)
json.dump({{"script": script, "work": work}}, open(result_path, "w"))
"""
"""A Python that returns the work that it gets, and fails in bfloat16."""
FLOAT32 = {"model": "m", "settings": {"dtype": "float32"}}
BFLOAT16 = {"model": "m", "settings": {"dtype": "bfloat16"}}


@pytest.fixture
def stub(tmp_path: Path) -> Other:
    path = tmp_path / "python"
    path.write_text(STUB)
    path.chmod(0o755)
    return Other("trl", str(path))


def test_work_goes_to_the_script_and_its_result_comes_back(stub: Other) -> None:
    result = stub.measure(FLOAT32)
    assert result["script"].endswith("bench/other_library.py")
    folder = result["work"].pop("folder")
    assert result["work"] == FLOAT32 | {"library": "trl"}
    assert not Path(folder).parent.exists()


def test_a_failure_says_with_what_and_shows_the_last_lines(stub: Other) -> None:
    with pytest.raises(OtherFailed) as failed:
        stub.measure(BFLOAT16)
    assert "--against trl: failed with dtype=bfloat16 (exit status 3)" in str(failed.value)
    assert str(failed.value).endswith("\n  warming up\n  no bfloat16 here")


def test_settings_that_fail_are_left_out_unless_all_do(stub: Other) -> None:
    said: list[str] = []
    ((work, result),) = stub.measure_each([BFLOAT16, FLOAT32], said.append)
    assert (work, result["work"]["settings"]) == (FLOAT32, FLOAT32["settings"])
    assert said[0] == "measuring trl with dtype=bfloat16"
    assert "no bfloat16 here" in said[1]
    with pytest.raises(OtherFailed, match="no bfloat16 here"):
        stub.measure_each([BFLOAT16], said.append)


def test_a_library_that_is_not_installed_is_refused() -> None:
    with pytest.raises(ConfigError) as refused:
        Other("nosuchlib").check()
    assert f"--against nosuchlib: {sys.executable} has no nosuchlib; pip install nosuchlib, or" in str(refused.value)
    assert "--against-python" in str(refused.value)
    Other("torch").check()


@pytest.mark.parametrize("path", ["", "none", "/dev/null", "/"])
def test_a_python_that_cannot_be_run_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match=f"--against-python '{path}': cannot be run .* give the path of a Python"):
        Other("torch", path).check()


def test_a_call_apart_has_a_process_of_its_own() -> None:
    assert apart(os.getpid) != os.getpid()
    with pytest.raises(OtherFailed, match="killed, probably because memory ran out"):
        apart(os._exit, 1)


def test_given_settings_replace_those_that_would_be_tried() -> None:
    tried: list[dict[str, Any]] = [{"dtype": dtype, "size": size} for dtype in ("float32", "other") for size in (1, 4)]
    assert candidates({}, tried) == tried
    assert candidates({"dtype": "float32", "more": 1}, tried) == [
        {"dtype": "float32", "size": 1, "more": 1},
        {"dtype": "float32", "size": 4, "more": 1},
    ]
