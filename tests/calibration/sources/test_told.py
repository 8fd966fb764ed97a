"""What free text says is a table: each phrase stands in a published row and fills a column that is
read."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pandas as pd
import pytest

from calibration.sources.told import amended, noted
from predictor import catalog
from predictor.plans import SERVING_FIELDS, TRAINING_FIELDS

FOLDER = catalog.data_dir() / "reference"
LINES = list(csv.DictReader((FOLDER / "noted.csv").read_text("utf-8").splitlines()))
OWN = {
    "training": {*TRAINING_FIELDS, "doubtful"},
    "inference": {*SERVING_FIELDS, "block_scaled", "batch_counts", "batches", "benchmark",
                  "dataset", "requests", "statistic", "doubtful", "tentative"},
    "collectives": {"link", "link_gbs"},
}  # fmt: skip
TABLES = {
    "training": ("reference/training.csv",),
    "inference": ("reference/inference.csv", "bulk/inference/serving_runs.csv.gz"),
    "collectives": ("bulk/kernels/ops.parquet",),
}


def test_every_phrase_fills_a_column_that_is_read_and_has_a_reason() -> None:
    for line in LINES:
        column = {"kv_precision": "precision"}.get(line["column"], line["column"])
        assert column in OWN[line["table"]], line
        assert line["reason"]
        re.compile(line["words"])


def test_every_phrase_stands_in_a_published_row(shared: Path) -> None:
    own = [FOLDER / "training.csv", FOLDER / "unseen.csv"]
    for table, names in TABLES.items():
        paths = [*(shared / name for name in names), *(own if table == "training" else ())]
        read = [
            pd.read_parquet(path, columns=["notes"])
            if path.suffix == ".parquet"
            else pd.read_csv(path, usecols=["notes"])
            for path in paths
        ]
        notes = " | ".join(pd.concat(read)["notes"].dropna().unique())
        for line in LINES:
            if line["table"] == table:
                assert re.search(line["words"], notes, re.IGNORECASE), line["words"]


@pytest.mark.parametrize(
    ("row", "column", "value"),
    [
        ({"notes": "vLLM; 12 replica(s)"}, "batches", "12"),
        ({"notes": "3000 Prompts sent"}, "requests", "3000"),
        ({"notes": "FLAG: batch=max_num_seqs"}, "batch_counts", "most"),
        ({"notes": "batch=max_num_seqs", "batch_counts": "clients"}, "batch_counts", "clients"),
        ({"notes": "EP overlap on"}, "ep_overlap", None),
        ({"notes": ""}, "requests", None),
    ],
)  # fmt: skip
def test_words_fill_what_is_empty_alone(row: dict[str, str], column: str, value: str) -> None:
    assert noted(row, "inference").get(column) == value


@pytest.mark.parametrize(
    ("notes", "several"),
    [
        ("THD packing, token microbatch 4096, max_seq 4096 (packed)", "1"),
        ("THD packing, token microbatch 16384, max_seq 8192", "2"),
        ("token microbatch 16384, max_seq 16384", "1"),
        ("token microbatch 6144, max_seq 4096", None),  # not of whole sequences
    ],
)
def test_packed_micro_batches_are_stated_by_their_tokens(notes: str, several: str | None) -> None:
    assert noted({"notes": notes}, "training").get("micro_batch") == several
    assert noted({"notes": notes, "micro_batch": 8}, "training")["micro_batch"] == 8


@pytest.mark.parametrize(
    ("notes", "stages"),
    [("Interleaved 1F1B; AsyncTP", "2"), ("Interleaved1F1B", "2"), ("1F1B; AsyncTP", None),
     ("1f1b-interleaved(vpp2)", None)],
)  # fmt: skip
def test_pytorchs_interleaved_schedule_has_two_stages_to_a_rank(
    notes: str, stages: str | None
) -> None:
    assert noted({"notes": notes}, "training").get("vpp") == stages
    assert noted({"notes": notes, "vpp": 4}, "training")["vpp"] == 4


@pytest.mark.parametrize(("words", "hidden"), [("", "false"), ("Overlapped", None)])
def test_an_optimizer_held_against_one_that_overlaps_does_not(
    words: str, hidden: str | None
) -> None:
    row = noted({"notes": f"{words}DistributedOptimizer; 8xA100-80GB nodes"}, "training")
    assert [row.get(name) for name in ("grad_overlap", "param_overlap")] == [hidden, hidden]


def test_words_of_one_source_say_nothing_of_another() -> None:
    row = {"notes": "A3 Mega, 16 nodes", "source": "dstack-docs"}
    assert noted(row, "collectives")["link_gbs"] == "25.0"
    assert noted({**row, "source": "mine"}, "collectives") == {**row, "source": "mine"}


@pytest.mark.parametrize(
    ("end", "column", "expected"),
    [
        ("mixtral-8x7b_fp8_36_a", "precision", "bf16"),  # its page says bf16 of this table
        ("gpt-oss-120b_GB200_mxfp8_64_22_a", "doubtful", "1"),  # and calls this a regression
        ("f63407b9_5B_1n", "tp", "2"),  # figures of June, with June's recipe
        ("primus_l2_r1_a", "sums_apart", "0"),
    ],
)
def test_a_page_says_more_of_rows_than_the_table(end: str, column: str, expected: str) -> None:
    known = pd.read_csv(catalog.data_dir() / "reference" / "training.csv", low_memory=False)
    (row,) = known[known["point_id"].str.endswith(end)].to_dict("records")
    assert str(amended(row)[column]) == expected
