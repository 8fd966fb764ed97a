"""The layout of an engine, where a request leaves it open: the first that holds the weights and a
sequence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from predictor.catalog import scale_up
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.memory import serving_memory
from predictor.models import Model
from predictor.plans import (
    PADS_HEADS,
    SERVING_CATEGORIES,
    SERVING_NUMBERS,
    ServingPlan,
    near_multiples,
)
from predictor.records import dataclass
from predictor.serving.offload import hosts_memory
from predictor.timing import RunParameters

LAID_OUT = ("batch", "tp", "pp", "dp", "ep", "serving", "weights", "kv")
"""Fields of a plan that the draft gives itself."""


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """A serving request of which the layout may be open.

    values   of all that is stated or filled in
    """

    model: Model
    cluster: Cluster
    values: Mapping[str, Any]

    def plan(self, tp: int, pp: int) -> ServingPlan:
        """The plan with a layout."""
        values = self.values
        apart = read_apart(values)
        own = values["gpus"] - apart if "gpus" in values else tp * pp
        dp = values.get("dp", max(own // (tp * pp), 1))
        ep = values.get("ep", tp * dp if self.model.is_moe and dp > 1 else 1)
        taken = {
            name: values[name]
            for name in (*SERVING_CATEGORIES, *SERVING_NUMBERS)
            if name in values and name not in LAID_OUT
        }
        if taken.get("offload", "none") != "none":
            gpus = tp * pp * dp + apart
            taken.setdefault("host_memory", float(hosts_memory(self.cluster, gpus)))
        return ServingPlan(
            batch=values["batch"],
            tp=float(tp),
            pp=float(pp),
            dp=float(dp),
            ep=float(ep),
            serving=float(values["serving"]),
            weights=values["precision"],
            kv=values["kv_precision"],
            **taken,
        )


def read_apart(values: Mapping[str, Any]) -> int:
    """Accelerators that read prompts and nothing else."""
    each = values.get("prefill_tp", 1) * values.get("prefill_dp", 1)
    return int(values.get("prefill_workers", 0) * each)


def layouts(draft: Draft) -> list[tuple[int, int]]:
    """Possible (tp, pp), fewest accelerators first: tp inside the node, then stages.

    Raises InputError where there is none.
    """
    model, cluster, values = draft.model, draft.cluster, draft.values
    node = scale_up(cluster)
    widths = [2**i for i in range(8) if 2**i <= node and model.heads % 2**i == 0]
    if cluster.accelerator.vendor in PADS_HEADS and 0 < values.get("gpus", 0) <= node:
        widths = sorted({*widths, values["gpus"]})
    tps = [int(values["tp"])] if "tp" in values else widths
    usual = [1] if model.shared_blocks else [1, 2, 4, 8, 16]
    pps = [int(values["pp"])] if "pp" in values else usual
    if "tp" not in values and {"gpus", "pp", "dp"} <= values.keys():
        rest, over = divmod(values["gpus"] - read_apart(values), values["pp"] * values["dp"])
        tps = [int(rest)] if rest and not over else []
    every = [(tp, pp) for tp in tps for pp in pps]
    pairs = [(tp, pp) for tp, pp in every if pp == 1 or tp == max(tps)]
    gpus = values.get("gpus")
    if gpus is not None:
        gpus -= read_apart(values)
        dp = values.get("dp")
        known = every if "pp" in values else pairs
        whole = [(tp, pp) for tp, pp in known if tp * pp * (dp or 1) == gpus]
        one = not ("tp" in values or _wide(draft, gpus, node))  # engine on all of them
        if one and not whole and gpus > 0 and "pp" not in values and gpus % (dp or 1) == 0:
            whole = _odd(model, tps, gpus // (dp or 1))
        if dp is not None or (one and (whole or "pp" not in values)):
            pairs = whole
        else:
            pairs = [(tp, pp) for tp, pp in pairs if gpus % (tp * pp) == 0]
        if dp is None and "ep" in values:
            pairs = [pair for pair in pairs if gpus % (pair[1] * values["ep"]) == 0] or pairs
    if not pairs:
        if apart := read_apart(values):
            raise InputError(
                f"prefill_workers take {apart} of {values['gpus']} accelerators, and no tp and pp "
                "divide what is left; state more gpus, fewer workers or another prefill_tp"
            )
        raise _undivided(values)
    return sorted(pairs, key=lambda pair: (pair[0] * pair[1], -pair[0]))


def _odd(model: Model, tps: list[int], gpus: int) -> list[tuple[int, int]]:
    """The layout of an engine on a number of accelerators that no usual one fills (3, 6, 24): the
    widest tp that divides them, and as many stages as that leaves (vLLM docs, parallelism and
    scaling: stages where the accelerators do not divide the model evenly; from memory)."""
    widest = max((tp for tp in tps if gpus % tp == 0), default=0)
    return [(widest, gpus // widest)] if widest and gpus // widest <= model.layers else []


def _undivided(values: Mapping[str, Any]) -> InputError:
    """What of a request does not divide: the accelerators, else the heads."""
    gpus, sizes = values.get("gpus"), {n: values[n] for n in ("tp", "pp", "dp") if n in values}
    if gpus is not None and gpus % math.prod(sizes.values()):
        near = near_multiples(gpus, *sizes.values())
        product = " x ".join(f"{name} {size}" for name, size in sizes.items())
        return InputError(f"gpus {gpus} is not a multiple of {product}; nearest {near}")
    return InputError("no tp and pp divide the heads and the GPUs; state --tp and --pp")


TOGETHER = 8
"""Ranks over which attention is divided at most where experts are shared by more: beyond a node of
eight it has replicas (docs/serving/expert_parallel_deployment.md of vLLM; that SGLang's and
TensorRT-LLM's recipes of wide expert parallelism do the same is from memory)."""


def _wide(draft: Draft, gpus: int, node: float) -> bool:
    """Whether experts are shared by more ranks than attention is divided over, so that it has
    replicas."""
    ep = draft.values.get("ep", 1)
    return draft.model.is_moe and ep > min(TOGETHER, node) and gpus % ep == 0


def first_fit(
    draft: Draft, candidates: list[tuple[int, int]], run: RunParameters
) -> tuple[int, int]:
    """The first layout that holds the weights and a sequence, else the last."""
    for pair in candidates:
        room = serving_memory(draft.model, draft.cluster, draft.plan(*pair), run)
        if float(room.admitted) >= 1.0:
            return pair
    return candidates[-1]
