from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from groupwise.doctor.text_signs import foreign_script, read_signs, signs_of
from groupwise.runs import Run, RunReadError

ENGLISH = "How many seats are there in all twelve cars of the train?"
RUSSIAN = "Сколько всего мест в двенадцати вагонах этого поезда?"
CHINESE = "这列火车的十二节车厢里一共有多少个座位呢请你仔细想一想再回答这个问题"


@pytest.mark.parametrize(
    ("prompt", "completion", "script"),
    [
        (ENGLISH, ENGLISH, ""),
        (ENGLISH, RUSSIAN, "Cyrillic"),
        (ENGLISH, CHINESE, "Chinese or Japanese"),
        (ENGLISH, f"First we count the seats. {CHINESE}", "Chinese or Japanese"),
        (ENGLISH, "Let α and β be the numbers, so that α + β is the sum of both of them.", ""),
        (ENGLISH, "Толстой", ""),
        (RUSSIAN, RUSSIAN, ""),
        (RUSSIAN, ENGLISH, "Latin"),
        (RUSSIAN, f"{RUSSIAN} \\frac{{1}}{{2}} \\times \\text{{answer}}", ""),
        (f"Translate: {RUSSIAN}", RUSSIAN, ""),
        ("2 + 2 = ?", RUSSIAN, ""),
    ],
)
def test_the_writing_system_of_a_completion(prompt: str, completion: str, script: str) -> None:
    assert foreign_script(prompt, completion) == script


def test_a_part_of_a_file_is_read_as_the_whole_would_be(make: Any, tmp_path: Path) -> None:
    run = Run(make.run(tmp_path / "run", num_steps=5))
    assert read_signs(run, 5) == signs_of(5, run.rollouts(5))
    assert read_signs(run, 4) is None
    (run.path / "rollouts" / "000005.jsonl").write_text('{"problem": 1}\n')
    with pytest.raises(RunReadError, match="000005"):
        read_signs(run, 5)
