"""Traces of requests, in the forms in which they are published."""

from __future__ import annotations

import gzip
import json

import pytest

from predictor.catalog.traces import read_trace
from predictor.errors import InputError

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:46.6905900,879,55
"""
BURST = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
"""
MOONCAKE = [
    {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]},
    {"timestamp": 3000, "input_length": 600, "output_length": 9, "hash_ids": [1, 4]},
]
RESULT = {"input_lens": [10, 20, 30], "output_lens": [4, 0, 6], "start_times": [7.0, 8.0, 6.5]}


def written(folder, name, text):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_azure(tmp_path):
    """Sorted by their times, which have seven digits behind the point."""
    found = read_trace(written(tmp_path, "azure.csv", AZURE))
    assert found.arrival.tolist() == pytest.approx([0.0, 0.01, 4.314579], abs=1e-6)
    assert found.input_len.tolist() == [374, 879, 396]
    assert found.output_len.tolist() == [44, 55, 109]
    assert found.rate == pytest.approx(2 / 4.314579, rel=1e-6)


def test_burst_gpt_counts_a_failure_as_one_token(tmp_path):
    found = read_trace(written(tmp_path, "burst.csv", BURST))
    assert found.arrival.tolist() == [0.0, 40.0]
    assert found.output_len.tolist() == [18, 1]


def test_mooncake_is_in_milliseconds_and_blocks(tmp_path):
    lines = "\n".join(json.dumps(one) for one in MOONCAKE)
    path = tmp_path / "mooncake.jsonl.gz"
    path.write_bytes(gzip.compress(lines.encode()))
    found = read_trace(path)
    assert found.arrival.tolist() == [0.0, 3.0]
    assert found.pieces == (((1, 512), (2, 512), (3, 512)), ((1, 512), (4, 512)))


def test_results_of_bench_clients(tmp_path):
    """The last run of a file; requests without an answer were not served."""
    earlier = {**RESULT, "input_lens": [1, 1, 1]}
    text = "\n".join(json.dumps(one) for one in (earlier, RESULT))
    found = read_trace(written(tmp_path, "out.jsonl", text))
    assert found.input_len.tolist() == [30, 10]
    assert found.arrival.tolist() == [0.0, 0.5]
    plain = {name: RESULT[name] for name in ("input_lens", "output_lens")}
    assert read_trace(written(tmp_path, "out.json", json.dumps(plain))).arrival is None


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.csv", "hour,requests_per_s\n1,2\n", "is no trace of requests"),
        ("a.csv", "input_len,output_len\n", "has no requests"),
        ("a.csv", "input_len,output_len\nfew,2\n", "column input_len"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,1,2\n", "neither seconds nor"),
        ("a.csv", "input_len,output_len\n0,2\n", "at least one token"),
        ("a.json", "{", "neither CSV nor JSON"),
        ("b.csv", None, "cannot read"),
    ],
)
def test_what_is_no_trace_is_one_line(tmp_path, name, text, told):
    path = tmp_path / name if text is None else written(tmp_path, name, text)
    with pytest.raises(InputError, match=told) as error:
        read_trace(path)
    assert "\n" not in str(error.value)
