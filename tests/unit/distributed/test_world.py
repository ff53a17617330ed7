"""Which errors say that a rank is gone, and a world of one."""

from __future__ import annotations

import pytest
import torch

from groupwise.distributed.shards import Unsharded, local
from groupwise.distributed.world import RankLost, World, join_world, together

GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1"


def test_a_bare_call_fails_because_a_rank_is_gone() -> None:
    with pytest.raises(RankLost, match=r"another rank is gone \(no such luck\).*--resume"), together():
        raise RuntimeError("no such luck")


@pytest.mark.parametrize("error", [RuntimeError(GLOO), torch.distributed.DistBackendError("NCCL error")])
def test_in_a_pass_only_errors_of_the_messages_do(error: RuntimeError) -> None:
    with pytest.raises(RankLost, match="another rank is gone"), together(is_bare=False):
        raise error


@pytest.mark.parametrize("error", [RuntimeError("shapes do not match"), torch.OutOfMemoryError("out of memory")])
def test_others_stay_what_they_are(error: RuntimeError) -> None:
    with pytest.raises(type(error)) as raised, together(is_bare=False):
        raise error
    assert raised.value is error


def test_a_world_of_one_leaves_everything_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    world = join_world()
    assert type(world) is World
    assert world.is_alone
    assert list(world.in_step("abc")) == [("a", True), ("b", True), ("c", True)]
    tensor = torch.ones(3, requires_grad=True)
    shards = Unsharded()
    assert local(tensor) is shards.whole("a", tensor) is shards.part("a", tensor) is tensor
    assert shards.run(max, 1, 2) == 2
