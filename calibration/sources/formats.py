"""The foreign formats that can be imported, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from calibration.sources import aiconfigurator, kineto, nccl_tests, vidur
from calibration.sources.folders import Reader, read_named
from calibration.sources.found import Found, Stated, kernel_rows
from predictor.errors import InputError


def _whole(read: Callable[[Path], pd.DataFrame]) -> Reader:
    """A reader that needs nothing stated and turns a whole table into rows."""

    def reader(path: Path, stated: Stated) -> Found:
        try:
            return Found(kernel_rows(read(path)))
        except (OSError, ValueError, KeyError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"{path} is no such table of aiconfigurator: {reason}") from None

    return reader


AICONFIGURATOR = {
    "gemm_perf.parquet": _whole(aiconfigurator.gemm),
    "context_attention_perf.parquet": _whole(aiconfigurator.attention),
    "generation_attention_perf.parquet": _whole(aiconfigurator.decode),
    "context_mla_perf.parquet": _whole(aiconfigurator.latent_attention),
    "generation_mla_perf.parquet": _whole(aiconfigurator.latent_decode),
    "mla_bmm_perf.parquet": _whole(aiconfigurator.latent_products),
    "moe_perf.parquet": _whole(aiconfigurator.experts),
    "nccl_perf.parquet": _whole(aiconfigurator.nccl),
}
"""How each table of aiconfigurator is read, by its file name."""


@dataclass(frozen=True, slots=True)
class Format:
    """How a file of one format becomes kernel rows, and what its user may state about it:
    'accelerator', 'op', 'link'."""

    read: Reader
    takes: tuple[str, ...]


FORMATS = {
    "aiconfigurator": Format(lambda path, stated: read_named(path, stated, AICONFIGURATOR), ()),
    "kineto": Format(kineto.read, ("accelerator", "link")),
    "nccl-tests": Format(nccl_tests.read, ("accelerator", "op", "link")),
    "vidur": Format(vidur.read, ("accelerator", "link")),
}
"""The formats by name."""
