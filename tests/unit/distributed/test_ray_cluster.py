"""What can be decided about ranks on Ray without Ray: how many, who is to blame, what a rank is told."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from groupwise.cli import main
from groupwise.config import ConfigError
from groupwise.distributed import ray_cluster
from groupwise.distributed.ray_cluster import (
    Rank,
    RankFailure,
    check_address,
    choose_ranks,
    rank_environment,
    ray_ranks,
    to_blame,
)
from groupwise.distributed.world import RankLost

GPU_EACH, CPU_EACH = {"CPU": 1, "GPU": 1}, {"CPU": 1}


@pytest.mark.parametrize(
    ("asked", "num_gpus", "use_gpus", "expected"),
    [
        (None, 8, True, (8, GPU_EACH)),
        (3, 8, True, (3, GPU_EACH)),
        (3, 0, True, (3, CPU_EACH)),
        (16, 8, False, (16, CPU_EACH)),
    ],
)
def test_a_rank_for_each_gpu_or_as_many_as_asked(asked: Any, num_gpus: int, use_gpus: bool, expected: Any) -> None:
    assert choose_ranks(asked, num_gpus=num_gpus, num_cpus=64, use_gpus=use_gpus) == expected


@pytest.mark.parametrize(
    ("asked", "num_gpus", "use_gpus", "message"),
    [
        (9, 8, True, "--ray-ranks 9: a rank needs one GPU, and the cluster has 8"),
        (65, 0, True, "--ray-ranks 65: a rank needs one CPU, and the cluster has 64"),
        (None, 0, True, "the cluster has no GPUs, so set the number"),
        (None, 8, False, 'model.device = "cpu", so set the number'),
    ],
)
def test_what_the_cluster_cannot_give_is_refused(asked: Any, num_gpus: int, use_gpus: bool, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_ranks(asked, num_gpus=num_gpus, num_cpus=64, use_gpus=use_gpus)


def test_an_address_that_does_not_answer_is_refused_at_once() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"--ray-address {address}: does not respond"):
            check_address(address)
        listener.listen()
        check_address(address)
    check_address("auto")
    with pytest.raises(ConfigError, match="an address for clients"):
        check_address("ray://10.0.0.7:10001")


def test_who_missed_another_rank_is_not_to_blame() -> None:
    lost = RankFailure(RankLost("another rank is gone"), has_died=False)
    raised = RankFailure(ValueError("bad"), has_died=False)
    died = RankFailure(RuntimeError("The actor died"), has_died=True)
    assert to_blame({0: lost, 2: lost, 1: raised}) == 1
    assert to_blame({0: lost, 1: raised, 2: died}) == 2
    assert to_blame({3: lost, 0: lost}) == 3


def test_a_rank_is_told_what_torchrun_would_tell_it() -> None:
    expected = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29500"}
    assert rank_environment(1, 4, "10.0.0.7", 29500, has_gpu=True) == expected
    # A rank without a GPU of its own must not take one that it happens to see.
    assert rank_environment(1, 4, "10.0.0.7", 29500, has_gpu=False) == expected | {"CUDA_VISIBLE_DEVICES": ""}


def test_without_ray_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "ray", None)
    with (
        pytest.raises(ConfigError, match=r"pip install 'groupwise\[ray\]'"),
        ray_ranks(1, address=None, use_gpus=False),
    ):
        pass


def test_options_that_do_not_go_together(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "demo", "--ray-ranks", "2"]) == 2
    assert "need --ray" in capsys.readouterr().err
    for name, value in rank_environment(1, 2, "localhost", 29500, has_gpu=False).items():
        monkeypatch.setenv(name, value)
    assert main(["train", "demo", "--ray"]) == 2
    assert "leave torchrun out" in capsys.readouterr().err


def test_a_token_is_seen_where_it_was_written_and_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "SHARED_FOLDER_S", 0.1)
    (tmp_path / "file").touch()
    rank = Rank()
    assert rank.write_token(tmp_path / "file" / "run", "token") == "Not a directory"
    assert rank.write_token(tmp_path / "run", "token") == ""
    assert rank.sees_token(tmp_path / "run", "token")
    assert not rank.sees_token(tmp_path / "other", "token")
    rank.remove_token(tmp_path / "run", "token")
    assert not rank.sees_token(tmp_path / "run", "token")
