"""Peers beside reckon: rows that are whole, errors that are those of the answers, reasons kept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tools.peers import __main__ as peers
from tools.peers import rows


def test_rows_are_whole_and_sources_count_alike() -> None:
    found = rows.training(ROOT / "data" / "reference" / "training.csv")
    counts: dict[str, int] = {}
    for row in found:
        counts[row["source"]] = counts.get(row["source"], 0) + 1
        assert all(row[name] for name in rows.DIMENSIONS)
        assert row["value"] > 0
        assert row["global_batch"] % (row["dp"] * row["micro_batch"]) == 0
    assert len(counts) >= 8
    assert max(counts.values()) <= rows.MOST_OF_A_SOURCE


SCRIPT = """
import json, sys
print(json.dumps([[row["point_id"], row["value"] * 1.25 if row["tp"] == 1 else None,
                   "" if row["tp"] == 1 else "knows no tensor parallelism", 0.5]
                  for row in json.load(sys.stdin)]))
"""


def test_a_peer_is_asked_in_its_own_process_and_judged_by_its_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "asks.py").write_text(SCRIPT)
    monkeypatch.setattr(peers, "HERE", tmp_path)
    peer = peers.Peer("p", "p==1", "asks.py")
    asked = [
        {"point_id": name, "source": "s", "tp": tp, "value": 2.0}
        for name, tp in (("a", 1), ("b", 8), ("c", 1))
    ]
    told = peers.ask(peer, Path(sys.executable), asked)
    assert told.values == {"a": 2.5, "c": 2.5}
    assert told.why == {"b": "knows no tensor parallelism"}
    assert told.each == 0.5
    ours = peers.Answers({"a": 1.0, "b": 2.0, "c": 2.0}, 0.001, {})
    lines = peers.scored(asked, {"reckon": ours, "p": told})
    assert lines[2] == "| s | 3 | 17% | 25% (2) |"  # (50 + 0 + 0) / 3; 25 % of the two it knows
    assert lines[3] == "| **rows that all answer** | 2 | 25% | 25% |"
    failing = peers.ask(peer, tmp_path / "none", asked)
    assert not failing.values
    assert set(failing.why) == {"a", "b", "c"}


def test_what_cannot_be_installed_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> None:
        raise subprocess.CalledProcessError(1, "pip", stderr=b"No matching distribution found")

    monkeypatch.setattr(subprocess, "run", failing)
    missing = peers.Peer("none", "no-such-package==1")
    python, why = peers.environment(missing, tmp_path / "places")
    assert python is None
    assert why == "cannot be installed: No matching distribution found"
    for peer in peers.PEERS:
        assert peer.script or peer.why
        assert not peer.script or (peers.HERE / peer.script).is_file()
