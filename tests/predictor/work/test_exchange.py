"""How a mixture's tokens travel among attention replicas."""

from __future__ import annotations

import pytest

from predictor import catalog
from predictor.plans import ServingPlan
from predictor.work import Collective
from predictor.work.serving import layer_operators, pass_collectives

MODEL = catalog.model("deepseek-v3")
PLAN = ServingPlan(batch=64.0, input_len=1024.0, output_len=64.0, dp=8.0, ep=8.0, weights="fp8")


def sent(**more: object) -> dict[str, Collective]:
    plan = ServingPlan(**{**PLAN.__dict__, **more})
    return {one.name: one for one in pass_collectives(MODEL, plan, 16.0, 16.0)}


def test_gathered_tokens_are_those_of_all_replicas() -> None:
    found = sent(exchange="gather")
    assert found["moe.collect"].op == "allgather"
    assert found["moe.return"].op == "reducescatter"
    assert found["moe.collect"].bytes == 2 * 16 * 8 * MODEL.hidden
    assert "moe.dispatch" not in found


@pytest.mark.parametrize(
    ("exchange", "op", "size"),
    [("alltoall", "alltoall", 2), ("deepep", "alltoall.deepep_dispatch", 1),
     ("nvlink", "alltoall.one_sided_dispatch", 1)],
)  # fmt: skip
def test_copies_go_to_their_experts_as_narrow_as_the_kernel_takes_them(
    exchange: str, op: str, size: float
) -> None:
    found = sent(exchange=exchange)
    assert found["moe.dispatch"].op == op
    assert found["moe.dispatch"].bytes == size * 16 * MODEL.hidden * MODEL.top_k
    assert found["moe.combine"].bytes == 2 * 16 * MODEL.hidden * MODEL.top_k
    assert found["moe.dispatch"].count == MODEL.layers - MODEL.dense_layers


def idle(**more: object) -> float:
    plan = ServingPlan(**{**PLAN.__dict__, **more})
    experts = [one for one in layer_operators(MODEL, plan, 16.0) if one.op == "moe_gemm"]
    return float(experts[0].idle)


def test_kernels_walk_over_what_reaches_their_rank() -> None:
    assert idle(exchange="alltoall", library="vllm") == 0
    assert idle(exchange="gather", library="vllm") == 7
    assert idle(exchange="gather", library="trtllm") == 0
    assert idle(dp=1.0, tp=8.0, library="sglang") == 7
    assert idle(dp=1.0, tp=8.0, ep=1.0, library="sglang") == 0
