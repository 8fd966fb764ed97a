"""What launchers and collectors write before every line takes nothing from a log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reckon.logs.labels import Labels
from reckon.logs.rows import Given
from reckon.verbs.runs import read_one

FIXTURES = Path(__file__).parent / "fixtures"
LABELS = {
    "srun": "12: ",
    "torchrun": "[default0]:",
    "role": "[rank0]:",
    "mpirun": "[1,0]<stdout>:",
    "ray": "(TrainWorker pid=1234, ip=10.0.0.1) ",
    "kubectl": "2025-03-04T10:00:00.123456789Z ",
    "kubelet": "2025-03-04T10:00:00.123456789+00:00 stdout F ",
    "compose": "trainer-1  | ",
    "journal": "Mar 04 10:00:00 node7 python3[881]: ",
    "both": "2025-03-04T10:00:00.123Z [rank0]:",
}
TOLD = ("deepspeed.log", "nemo.log", "torchtitan.log", "megatron.log", "maxtext.log",
        "nanotron.log", "mllog.log", "vllm_printed.log", "sglang_printed.log",
        "trainer_printed.log", "trainer_bar.log")  # fmt: skip


def rows(path: Path) -> list[dict[str, Any]]:
    """What a file's rows say, but where it lies and when it was written."""
    aside = {"point_id", "source_locator", "published"}
    return [
        {key: value for key, value in row.items() if key not in aside}
        for row in read_one(path, Given({})).rows
    ]


@pytest.mark.parametrize("name", TOLD)
@pytest.mark.parametrize("who", LABELS)
def test_a_label_takes_nothing_from_a_log(name: str, who: str, tmp_path: Path) -> None:
    lines = (FIXTURES / name).read_text(encoding="utf-8").split("\n")
    path = tmp_path / name
    path.write_text("\n".join(LABELS[who] + line for line in lines), encoding="utf-8")
    assert rows(path) == rows(FIXTURES / name)


@pytest.mark.parametrize("name", ["deepspeed.log", "nemo.log", "torchtitan.log"])
def test_what_another_rank_says_is_no_part_of_a_configuration(name: str, tmp_path: Path) -> None:
    lines = (FIXTURES / name).read_text(encoding="utf-8").split("\n")
    path = tmp_path / name
    path.write_text("\n".join(f"[rank0]:{line}\n[rank1]:warn: {{" for line in lines), "utf-8")
    assert rows(path) == rows(FIXTURES / name)


@pytest.mark.parametrize("name", ["deepspeed.log", "nemo.log", "torchtitan.log"])
def test_a_host_is_known_again_before_lines_without_a_stamp(name: str, tmp_path: Path) -> None:
    lines = (FIXTURES / name).read_text(encoding="utf-8").split("\n")
    path = tmp_path / name
    path.write_text("\n".join(f"worker-1: {line}" for line in lines), encoding="utf-8")
    assert rows(path) == rows(FIXTURES / name)


@pytest.mark.parametrize("name", TOLD)
def test_lines_that_end_as_windows_ends_them(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes((FIXTURES / name).read_bytes().replace(b"\n", b"\r\n"))
    assert rows(path) == rows(FIXTURES / name)


@pytest.mark.parametrize(
    "line",
    ["Mean TTFT (ms): 12.0", "  tokenizer:", " iteration  7/ 500 | elapsed", "[titan] 2025-01-01",
     "step: 10  loss: 8.1", "100%|##| 3/3", "| Mean TPOT (ms) | 12 |", "[Rank 0] step=10"],
)  # fmt: skip
def test_what_a_program_says_itself_is_no_label(line: str) -> None:
    assert Labels().apart(line) == ("", line)


def test_a_rank_in_brackets_is_no_mesh(tmp_path: Path) -> None:
    """Of '[1,0]<stdout>:' before a line that tells the mesh no accelerators follow."""
    text = (FIXTURES / "torchtitan.log").read_text(encoding="utf-8")
    path = tmp_path / "a.log"
    path.write_text("\n".join("[1,0] " + line for line in text.split("\n")), encoding="utf-8")
    assert rows(path)[0]["num_gpus"] == 8
