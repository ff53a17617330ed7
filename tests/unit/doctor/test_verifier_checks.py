"""Failures of the verifier: those that come with training, and those that were always there."""

from pathlib import Path
from typing import Any

from groupwise.doctor import examine, read_stages
from groupwise.runs import Run


def test_failures_that_were_there_from_the_start_did_not_grow(make: Any, tmp_path: Path) -> None:
    def found(name: str, first: float, last: float) -> list[str]:
        run_dir = make.run(tmp_path / name, lambda n: {"score/timed_out_share": last if n > 40 else first})
        return [finding.check for finding in examine(read_stages(Run(run_dir)))]

    assert found("grown", 0.009, 0.03) == ["verifier_failures_grow"]
    assert found("as before", 0.009, 0.02) == ["verifier_time_outs"]
    assert found("always", 0.03, 0.3) == ["verifier_time_outs"]
    assert found("few", 0.0, 0.01) == []
