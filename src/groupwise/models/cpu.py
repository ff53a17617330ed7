"""What only a CPU needs: settings of this process for fast products, and whether bf16 is right and fast here.

bf16 is for models whose layers run as one operation (models/straight.py), where the engine and the learner round alike.
Whether it pays is measured once, in a process of its own, because on some processors bf16 products end the process.
"""

from __future__ import annotations

import ctypes
import logging
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch

from groupwise.base.outside import file_json
from groupwise.models.families import UNKNOWN, family_of, has_silu
from groupwise.models.head import has_plain_head

logger = logging.getLogger(__name__)

MIN_PARAMETERS = 30_000_000
"""Smaller models stay in fp32: their time goes elsewhere."""
MIN_SPEEDUP = 1.5
MAX_GAP = 1e-3
"""Largest mean difference of logprobs between engine and learner, in nats, at which bf16 is chosen."""
PROBE_SECONDS = 120.0

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of glibc's malloc.h
_NEVER = 2**31 - 1


@cache
def prepare() -> None:
    """Set up this process for products on a CPU, once. Neither setting changes what is computed in fp32."""
    _keep_pages()
    has_wide_vectors = torch.backends.cpu.get_cpu_capability() == "AVX512"
    if _is_amd() and has_wide_vectors and not torch.cpu._is_amx_tile_supported():
        # This lets torch use oneDNN instead of MKL, which has no AVX-512 code for these processors. Without AMX, oneDNN
        # computes fp32 products in fp32 whatever it is allowed.
        matmul = getattr(torch.backends.mkldnn, "matmul", None)
        if matmul is not None:
            matmul.fp32_precision = "bf16"
            if not _is_exact():
                matmul.fp32_precision = "none"


def _keep_pages() -> None:
    """Keep freed memory for the next tensor: fresh pages cost a quarter of sampling and a seventh of an update."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, _NEVER)


def _is_amd() -> bool:
    path = Path("/proc/cpuinfo")
    return path.exists() and "AuthenticAMD" in path.read_text(encoding="utf-8", errors="replace")


def _is_exact() -> bool:
    dice = torch.Generator().manual_seed(0)
    left, right = (torch.randn(64, 512, generator=dice) for _ in range(2))
    expected = left.double() @ right.double().t()
    return bool((left @ right.t() - expected).abs().max() < 1e-5 * expected.abs().max())


def choose_dtype(model: Any) -> torch.dtype:
    """Return bf16 if it is right and at least `MIN_SPEEDUP` times as fast as fp32 for this model, else fp32."""
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    if num_parameters < MIN_PARAMETERS or not _runs_straight(model) or _has_ranks():
        return torch.float32
    with tempfile.TemporaryDirectory(prefix="groupwise-probe-") as folder:
        model.config.save_pretrained(folder)
        answer = probe(Path(folder))
    if answer is None:
        logger.info("model.dtype = auto: float32, because this processor does not run bfloat16")
        return torch.float32
    is_chosen = answer["speedup"] >= MIN_SPEEDUP and answer["gap"] <= MAX_GAP
    dtype = torch.bfloat16 if is_chosen else torch.float32
    logger.info(
        "model.dtype = auto: %s; in a trial bfloat16 was %.1f times as fast as float32, and the engine's logprobs "
        "differed from the learner's by %.1e on average",
        str(dtype).removeprefix("torch."), answer["speedup"], answer["gap"],
    )  # fmt: skip
    return dtype


def _has_ranks() -> bool:
    """Whether other processes train the same model. Each could find another answer."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _runs_straight(model: Any) -> bool:
    if family_of(model) is UNKNOWN or not has_plain_head(model):
        return False
    return all(has_silu(layer.mlp) for layer in model.get_decoder().layers)


def probe(folder: Path) -> dict[str, float] | None:
    """Return {"speedup", "gap"} for the configuration in this folder; None if the process dies or has no answer."""
    result = folder / "probe.json"
    command = [
        sys.executable,
        "-m",
        "groupwise.engines.bf16_trial",
        str(folder),
        str(result),
        str(torch.get_num_threads()),
    ]
    try:
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        logger.debug("the trial of bfloat16 ended with %s", error)
        return None
    return {key: float(value) for key, value in file_json(result).items()}
