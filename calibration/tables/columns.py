"""Columns of inference tables that say what plans accept: fields by their own names, some by those
that benchmarks use, and the layout of prompts that are read apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calibration.tables.cells import cell
from predictor.plans import SERVING_FIELDS

READ_OTHERWISE = (
    "model", "system", "accelerator", "accelerators_per_node", "inter_link_gbps", "gpus", "tp",
    "pp", "dp", "ep", "batch", "concurrency", "saturated", "rate", "simulate", "input_len",
    "output_len", "precision", "kv_precision", "framework", "era", "version", "prefill_workers",
    "prefill_tp",
)  # fmt: skip
"""Fields of a plan that have columns with rules of their own."""


def truth(value: Any) -> bool:
    """Whether a cell says yes."""
    return str(value).strip().lower() in ("1", "1.0", "true", "yes", "on")


def plan_columns(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Fields of a plan that a row states in columns of their names, and `cuda_graphs` (yes or no)
    and `speculative` (guessed tokens)."""
    found = {
        name: cell(row, name)
        for name in SERVING_FIELDS
        if name not in READ_OTHERWISE and cell(row, name) is not None
    }
    graphs, guesses = cell(row, "cuda_graphs"), cell(row, "speculative")
    if graphs is not None:
        found.setdefault("execution", "graph" if truth(graphs) else "eager")
    if guesses is not None:
        found.setdefault("drafted", guesses)
    return found


def attention_replicas(row: Mapping[Any, Any], gpus: int) -> dict[str, Any]:
    """The layout of a row whose column `dp_attention` says that each rank has its own sequences:
    experts are divided among all of them, unless `ep` says otherwise."""
    said = cell(row, "dp_attention")
    if said is None or not truth(said):
        return {}
    pp = int(cell(row, "pp") or 1)
    tp = int(cell(row, "tp") or 1)
    replicas = int(cell(row, "dp") or 1)
    if replicas < 2:  # the tensor-parallel size counts all ranks, as engines' flags do
        tp, replicas = 1, gpus // pp
    tp = own_ranks(tp, replicas, gpus // pp)
    return {"tp": tp, "pp": pp, "dp": replicas, "ep": cell(row, "ep") or tp * replicas}


def own_ranks(tp: int, replicas: int, ranks: int) -> int:
    """Ranks of each of several replicas of the attention: `tp` is theirs unless it counts all ranks
    of a stage, as SGLang's does (`--tp 8 --dp 8 --enable-dp-attention` is of eight ranks)."""
    return tp // replicas if tp == ranks and tp % replicas == 0 else tp


def read_apart(row: Mapping[Any, Any], mixture: bool) -> dict[str, Any]:
    """The layout of a row whose prompts are read apart (`prefill_workers` and the like; SCHEMA.md):
    that of one worker that decodes, with its share of those that read.

    mixture   whether the model has experts, which replicas of a worker's attention share; of others
              a replica is a worker
    """
    readers = cell(row, "prefill_workers")
    if not readers:
        return {}
    tp, dp, pp = (int(cell(row, name) or 1) for name in ("tp", "dp", "pp"))
    own, copies = (int(cell(row, name) or 1) for name in ("prefill_tp", "prefill_dp"))
    gpus, each = int(cell(row, "num_gpus") or 0), decoders(row) * pp
    left = {ranks: gpus - int(readers) * ranks for ranks in (own, own * copies)}
    ranks = own if left[own] in (each * tp * dp, each * tp) else own * copies
    shared = copies if mixture else 1
    return {
        "tp": own_ranks(tp, dp, left[ranks] // each),
        "pp": pp,
        "dp": dp,
        "ep": cell(row, "ep"),
        "prefill_tp": own_ranks(own, copies, ranks),
        "prefill_dp": shared,
        "prefill_workers": float(readers) * (copies // shared) / decoders(row),
    }


def decoders(row: Mapping[Any, Any]) -> int:
    """Workers that decode, of a row whose prompts are read apart; 1 of any other."""
    return int(cell(row, "workers") or 1) if cell(row, "prefill_workers") else 1
