from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from calibration.sources import nccl_tests
from calibration.sources.found import Stated
from calibration.tables.kernel_table import check_kernels, gaps
from predictor import catalog
from predictor.errors import InputError
from predictor.hardware.systems import Tier

Cli = Callable[..., tuple[int, str, str]]

DGX = catalog.system("dgx-a100")
STATED = Stated(
    tiers=DGX.tiers,
    per_node=DGX.accelerators_per_node,
    system=(DGX.name, DGX.accelerator.name),
)


def ranks(count: int, hosts: int = 1, device: str = "NVIDIA A100-SXM4-80GB") -> str:
    lines = [
        f"#  Rank {rank:2d} Group  0 Pid  41{rank:02d} on  node{rank * hosts // count} device "
        f"{rank:2d} [0x{7 + rank:02x}] {device}"
        for rank in range(count)
    ]
    return "# Using devices\n" + "\n".join(lines) + "\n"


NEW = """# Collective test starting: {test}_perf
# nThread 1 nGpus 8 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 graph: 0
#
{ranks}NCCL version 2.18.3+cuda12.2
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
{lines}# Out of bounds values : 0 OK
# Avg bus bandwidth    : 41.2
#
# Collective test concluded: {test}_perf
"""  # noqa: E501

OLD = """$ mpirun -np 8 ./build/{test}_perf -b 8 -e 128M -f 2 -g 1
# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#
# Using devices
#   Rank  0 Pid  30236 on   node-a device  0 [0x1a] Tesla V100-SXM2-32GB
#   Rank  1 Pid  30237 on   node-a device  1 [0x1b] Tesla V100-SXM2-32GB
#
#                                                     out-of-place                       in-place
#       size         count    type             time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        131072   float            31.50   33.29   16.64  0e+00    30.92   33.91   16.96    N/A
# Out of bounds values : {bounds}
# Avg bus bandwidth    : 16.8
"""  # noqa: E501

LINE = "{size:>12} {count:>13} float sum -1 {time:8.2f} 0.10 0.17 {wrong} 99.99 0.10 0.17 0\n"


def line(size: int, time: float, wrong: str = "0") -> str:
    return LINE.format(size=size, count=size // 4, time=time, wrong=wrong)


def new(test: str = "all_reduce", lines: str = line(1 << 20, 40.5), who: str = ranks(8)) -> str:
    return NEW.format(test=test, ranks=who, lines=lines)


def found(tmp_path: Path, text: str, stated: Stated = STATED) -> pd.DataFrame:
    path = tmp_path / "log.txt"
    path.write_text(text)
    return nccl_tests.read(path, stated).rows


@pytest.mark.parametrize(("test", "op"), list(nccl_tests.OPS.items()))
def test_out_of_place_columns_are_read(tmp_path: Path, test: str, op: str) -> None:
    """The size of an all-gather is what is gathered in all: no test's size is converted."""
    (row,) = found(tmp_path, new(test)).to_dict("records")
    assert (row["op"], row["dtype"], row["accelerator"]) == (op, "fp32", "A100-SXM4-80GB")
    assert (row["message_bytes"], row["latency_us"]) == (1 << 20, 40.5)
    assert (row["num_gpus"], row["num_nodes"]) == (8, 1)
    assert (row["link"], row["link_gbs"], row["in_switch"]) == ("nvlink3", 300, 0)
    assert row["framework_version"] == "2.18.3"


def test_columns_of_old_versions(tmp_path: Path) -> None:
    """No redop, no root, 'error' for '#wrong', and the command says which collective it is."""
    stated = Stated(tiers=(Tier("nvlink2", math.inf, 150e9),))
    text = OLD.format(test="all_gather", bounds="0 OK")
    (row,) = found(tmp_path, text, stated).to_dict("records")
    assert (row["op"], row["accelerator"]) == ("allgather", "V100-SXM2-32GB")
    assert (row["message_bytes"], row["latency_us"], row["num_gpus"]) == (1048576, 31.5, 2)


def test_the_tier_follows_the_hosts(tmp_path: Path) -> None:
    """Inside one host the innermost; across hosts the first that holds all ranks."""
    (row,) = found(tmp_path, new(who=ranks(2, hosts=2))).to_dict("records")
    assert (row["num_gpus"], row["num_nodes"]) == (2, 2)
    assert (row["link"], row["link_gbs"], row["in_switch"]) == ("infiniband-hdr", 25, 0)
    rack = catalog.system("GB200-NVL72")
    stated = Stated(tiers=rack.tiers, per_node=4, system=(rack.name, rack.accelerator.name))
    for count, hosts, link in ((4, 1, "nvlink5"), (72, 18, "nvlink5"), (80, 20, "infiniband-ndr")):
        who = ranks(count, hosts, "NVIDIA GB200")
        assert set(found(tmp_path, new(who=who), stated)["link"]) == {link}


def test_concatenated_runs_keep_their_own_collective_and_ranks(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    two = OLD.format(test="all_gather", bounds="0 OK").replace(
        "Tesla V100-SXM2-32GB", "NVIDIA H200"
    )
    path.write_text(
        new("all_reduce") + "srun: job done\n" + new("alltoall", who=ranks(4)) + two + new("reduce")
    )
    both = nccl_tests.read(path, Stated(tiers=(Tier("x", math.inf, 1e9),)))
    assert list(both.rows["op"]) == ["allreduce", "alltoall", "allgather"]
    assert list(both.rows["num_gpus"]) == [8, 4, 2]
    assert both.left_out == {"reduce_perf: the kernel table has no such collective": 1}


def test_what_cannot_be_used_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    lines = line(0, 12.0) + line(8, 30.0, "3") + line(16, 30.0, "N/A") + line(32, 31.0)
    failed = OLD.format(test="all_reduce", bounds="2 FAILED")
    path.write_text(new(lines=lines) + new(who=ranks(1)) + failed)
    one = nccl_tests.read(path, STATED)
    assert list(one.rows["message_bytes"]) == [16, 32]
    assert one.left_out == {
        "no bytes": 1,
        "wrong results (#wrong > 0)": 1,
        "one rank alone": 1,
        "wrong results somewhere in the run": 1,
    }


@pytest.mark.parametrize(
    ("text", "stated", "message"),
    [
        (
            new(lines=line(8, 1.0) + "  16   4  float\n"),
            STATED,
            "line 19: 3 values under 13 columns",
        ),
        (
            new(lines="x" + line(8, 1.0).lstrip()),
            STATED,
            "line 18: expected numbers, got size 'x8'",
        ),
        (new(lines=line(8, 1.0, "?")), STATED, "line 18: expected numbers"),
        (new(lines=line(8, 0.0)), STATED, "line 18: size 8 in 0 us is impossible"),
        (new(lines=line(8, 1.0).replace("float", "flaot")), STATED, "unknown type 'flaot'"),
        (new(who=""), STATED, "no '# Rank' lines above this table"),
        (new(who=ranks(2, device="Quadro")), STATED, "device 'Quadro' is not known by that name"),
        (new(who=ranks(1) + ranks(1, device="Tesla T4")), STATED, "ranks of several kinds"),
        (
            new(who=ranks(2, device="NVIDIA H200")),
            STATED,
            "is of H200-SXM-141GB, and DGX-A100-80GB",
        ),
        (new(), Stated(), "the link is not stated: give --system NAME"),
        (new(), Stated(op="alltoall"), "line 16: this is all_reduce_perf, and --op says alltoall"),
        (new().replace("all_reduce_perf", "mine"), STATED, "does not say which collective"),
        ("hello\n", STATED, "holds no table of nccl-tests"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, text: str, stated: Stated, message: str) -> None:
    with pytest.raises(InputError) as caught:
        found(tmp_path, text, stated)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_single_tier_does_not_reach_other_hosts(tmp_path: Path) -> None:
    box = catalog.system("L40S-8x-PCIe")
    stated = Stated(tiers=box.tiers, system=(box.name, box.accelerator.name))
    with pytest.raises(InputError, match="has no network between hosts"):
        found(tmp_path, new(who=ranks(4, 2, "NVIDIA L40S")), stated)


def test_import_then_validate_and_calibrate(cli: Cli, tmp_path: Path) -> None:
    sizes = [1 << power for power in range(10, 28)]
    log = tmp_path / "log.txt"
    log.write_text(new(lines="".join(line(s, 20 + 1.75 * s / 230e3) for s in sizes)))
    log.write_text(log.read_text().replace("# Collective test", "# Test").replace("_perf", ""))
    out = tmp_path / "nccl.parquet"
    arguments = ["import", "nccl-tests", log, "--system", "dgx-a100", "--out", out]
    status, _, err = cli(*arguments)
    assert status == 2
    assert "give --op" in err
    status, text, _ = cli(*arguments, "--op", "all_reduce")
    assert status == 0
    assert "wrote" in text
    assert "18 rows" in text
    assert not gaps(check_kernels(pd.read_parquet(out), "t")).any()
    status, text, _ = cli("validate", out, "--json", "-")
    assert status == 0
    assert json.loads(text)["n_predicted"] == 18
    status, text, _ = cli(
        "calibrate", out, "--base", "none", "--out", tmp_path / "c", "--json", "-"
    )
    assert status == 0
    held = json.loads(text)["heldout"]["allreduce/nvlink3"]
    assert held["median"] < 0.02
