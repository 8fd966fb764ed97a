"""The text that nccl-tests (and rccl-tests) print.

One file may hold several runs, each with its ranks and a table. Taken are the out-of-place
columns: time in microseconds, averaged over the ranks. The `size` column is what `message_bytes`
means: buffer per rank of an all-reduce, total output of an all-gather, total input of a
reduce-scatter, send buffer of an all-to-all, bytes sent of a sendrecv (nccl-tests,
doc/PERFORMANCE.md).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calibration.sources.devices import accelerator_of
from calibration.sources.found import Found, Stated, kernel_rows, link_columns
from predictor.errors import InputError

OPS = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "alltoall": "alltoall",
    "sendrecv": "p2p",
    "broadcast": "broadcast",
}
"""Tests whose rows the kernel table has, by the name of their program less '_perf'."""

OTHER_TESTS = ("reduce", "gather", "scatter", "hypercube")

TYPES = {
    "float": "fp32",
    "half": "fp16",
    "bfloat16": "bf16",
    "double": "fp64",
    "f8e4m3": "fp8",
    "f8e5m2": "fp8",
    "int8": "int8",
    "uint8": "uint8",
    "int32": "int32",
    "uint32": "uint32",
    "int64": "int64",
    "uint64": "uint64",
}

_TEST = re.compile(rf"(?<![a-z_])({'|'.join((*OPS, *OTHER_TESTS))})_perf\b")
_RANK = re.compile(
    r"#\s*Rank\s+\d+\s+(?:Group\s+(?P<group>\d+)\s+)?(?:Pid\s+\d+\s+)?on\s+(?P<host>\S+)\s+"
    r"device\s+\d+\s+\[[^\]]*\]\s+(?P<device>.*\S)"
)
_VERSION = re.compile(r"\b[NR]CCL version[ :]+(\d[\w.]*)")


@dataclass(slots=True)
class _Run:
    """One run of one test: the lines of its table with their numbers, and what stands above."""

    test: str = ""
    version: str = ""
    ranks: list[re.Match[str]] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    header: int = 0
    lines: list[tuple[int, str]] = field(default_factory=list)
    ended: bool = False
    failed: bool = False


def read(path: Path, stated: Stated) -> Found:
    """The tables of a file as rows of collectives.

    Raises InputError, naming the line, for a malformed one, and where the collective, the ranks
    or the link are not known.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not a text file") from None
    rows: list[dict[str, Any]] = []
    left_out: Counter[str] = Counter()
    runs = [run for run in _runs(lines) if run.columns]
    if not runs:
        raise InputError(f"{path} holds no table of nccl-tests")
    for run in runs:
        measured = [
            _measured(line.split(), run.columns, f"{path}, line {n}") for n, line in run.lines
        ]
        reason = _unusable(run, stated, f"{path}, line {run.header}")
        common = {} if reason else _common(run, stated, f"{path}, line {run.header}")
        for row in measured:
            why = reason or row.pop("wrong")
            if why:
                left_out[why] += 1
            else:
                rows.append(common | row)
    return Found(kernel_rows(rows), left_out)


def _runs(lines: list[str]) -> Iterator[_Run]:
    """The runs of a file, in their order."""
    run = _Run()
    for number, line in enumerate(lines, 1):
        test = None if "concluded" in line else _TEST.search(line)
        rank = _RANK.match(line)
        words = line[1:].split() if line.startswith("#") else []
        header = {"time", "algbw", "busbw"} <= set(words)
        if run.columns and (test or rank or header or words[:1] == ["nThread"]):
            yield run
            run = _Run()
        if version := _VERSION.search(line):
            run.version = version[1]
        elif test:
            run.test = test[1]
        elif rank:
            run.ranks.append(rank)
        elif header:
            run.columns, run.header = words, number
        elif words[:3] == ["Out", "of", "bounds"]:
            run.ended, run.failed = True, words[-1] == "FAILED"
        elif run.columns and not run.ended and not words and line.strip() and "NCCL" not in line:
            run.lines.append((number, line))
    yield run


def _unusable(run: _Run, stated: Stated, where: str) -> str:
    """Why no line of a run can become a row; '' if it can.

    Raises InputError where the file does not say what ran, or says other than the user.
    """
    test = _test(run, stated)
    if not test:
        raise InputError(f"{where}: the file does not say which collective this is; give --op")
    if stated.op and OPS.get(test) != stated.op:
        raise InputError(f"{where}: this is {test}_perf, and --op says {stated.op}")
    if not run.ranks:
        raise InputError(f"{where}: no '# Rank' lines above this table, which say who took part")
    if test not in OPS:
        return f"{test}_perf: the kernel table has no such collective"
    if len({rank["group"] for rank in run.ranks}) > 1:
        return "several groups of ranks at once share their links"
    if len(run.ranks) == 1:
        return "one rank alone"
    if run.failed and "#wrong" not in run.columns:
        return "wrong results somewhere in the run"
    return ""


def _test(run: _Run, stated: Stated) -> str:
    return run.test or next((test for test, op in OPS.items() if op == stated.op), "")


def _common(run: _Run, stated: Stated, where: str) -> dict[str, Any]:
    """What all rows of a run share."""
    devices = sorted({rank["device"] for rank in run.ranks})
    if len(devices) > 1:
        raise InputError(f"{where}: ranks of several kinds: {', '.join(devices)}")
    ranks, hosts = len(run.ranks), len({rank["host"] for rank in run.ranks})
    return {
        "source": "nccl-tests",
        "accelerator": accelerator_of(devices[0], stated, where),
        "op": OPS[_test(run, stated)],
        "num_gpus": float(ranks),
        "num_nodes": float(hosts),
        "framework": "nccl",
        "framework_version": run.version,
        **link_columns(stated, ranks, hosts),
    }


def _measured(words: list[str], columns: list[str], where: str) -> dict[str, Any]:
    """One line of a table; `wrong`: why it cannot be used, '' if it can."""
    if len(words) != len(columns):
        raise InputError(f"{where}: {len(words)} values under {len(columns)} columns")
    line = dict(zip(reversed(columns), reversed(words), strict=True))  # the first of each name
    wrong = line.get("#wrong", "0")
    try:
        size, time, errors = int(words[0]), float(line["time"]), int(wrong.replace("N/A", "0"))
    except ValueError:
        given = f"size {words[0]!r}, time {line['time']!r}, #wrong {wrong!r}"
        raise InputError(f"{where}: expected numbers, got {given}") from None
    if size < 0 or not 0 < time < math.inf:
        raise InputError(f"{where}: size {size} in {time:g} us is impossible")
    if line.get("type") not in TYPES:
        raise InputError(f"{where}: unknown type {line.get('type')!r}")
    return {
        "dtype": TYPES[line["type"]],
        "message_bytes": float(size),
        "latency_us": time,
        "wrong": "wrong results (#wrong > 0)" if errors else "" if size else "no bytes",
    }
