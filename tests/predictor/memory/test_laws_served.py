"""Bytes of every class of a served model, counted by hand for plans small enough to count."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from predictor import catalog
from predictor.hardware.accelerators import Accelerator
from predictor.hardware.systems import Cluster, Tier
from predictor.memory.serving import ServingMemory, serving_memory, tower_bytes
from predictor.models.encoder import tower_parameters
from predictor.models.tower import Tower
from predictor.plans.serving import ServingPlan
from predictor.timing.calibration import RunParameters
from predictor.work.serving import adapter_bytes, state_bytes
from tests.predictor.memory.test_laws_memory import (
    DENSE,
    EXPERTS,
    FEED_FORWARD,
    FFN,
    HEADS,
    INNER,
    KV,
    LAYER,
    MIXED,
    SHARED,
    TOP,
    TP,
    D,
    H,
    L,
    V,
    exact,
)

MEMORY = 10e9
DEVICE = Accelerator(
    name="device", architecture="none", peak={"bf16": 1e14}, memory=MEMORY, bandwidth=1e12, l2=4e7,
    l2_bandwidth=4e12, sms=100.0,
)  # fmt: skip
NODE = Cluster("node", DEVICE, 8, (Tier("nvlink4", 8.0, 4e11), Tier("infiniband", math.inf, 5e10)))
RUN = RunParameters(engine=1.5e9)


def served(**fields: object) -> ServingPlan:
    given = {"batch": 40.0, "input_len": 1000.0, "output_len": 200.0, "tp": 2.0, **fields}
    given = {"serving": 1.0, "chunk": 4096.0, "max_batch": 64.0, **given}
    return ServingPlan(**given)  # type: ignore[arg-type]


def test_what_a_served_model_takes() -> None:
    """Weights of 16 bits; of one pass the residual, a norm's outcome, what the first product and
    the activation put out; logits of 16 and 32 bits of as many sequences as there may be; keys and
    values of two of four heads for every token."""
    found = serving_memory(DENSE, NODE, served(), RUN)
    weights = 2 * (L * LAYER + 2 * V * H / TP + H)
    assert float(found.classes["weights"]) == exact(weights)
    states = 2 * 4096 * (2 * H + 3 * FFN / TP)
    logits = (2 + 4) * 64 * V / TP
    assert float(found.classes["activations"]) == exact(states + logits)
    assert float(found.classes["runtime"]) == 1.5e9
    token = L * 2 * 2 * KV / TP * D
    assert float(found.per_sequence) == exact(1200 * token)
    assert float(found.capacity) == exact(0.9 * MEMORY)
    room = 0.9 * MEMORY - weights - states - logits - 1.5e9
    assert float(found.sequences) == math.floor(room / (1200 * token))
    assert float(found.admitted) == math.floor(room / (1100 * token))
    assert float(found.classes["cache"]) == exact(40 * 1200 * token)
    assert float(found.total) == exact(sum(map(float, found.classes.values())))


def test_few_tokens_take_few_activations_and_replicas_add_up() -> None:
    """Static: whole prompts of the batch; those of the largest pass that there may be where an
    engine measures what is left for its cache. Two replicas hold twice as many sequences."""
    for pool, tokens in (("free", 100), ("total", 4096)):
        few = served(batch=1.0, input_len=100.0, serving=0.0, pool=pool)
        states = 2 * tokens * (2 * H + 3 * FFN / TP)
        found = serving_memory(DENSE, NODE, few, RUN).classes["activations"]
        assert float(found) == exact(states + 6 * V / TP)
    one, two = (
        serving_memory(DENSE, NODE, served(dp=dp, batch=2.0 * dp), RUN) for dp in (1.0, 2.0)
    )
    assert float(two.sequences) == 2 * float(one.sequences)


@pytest.mark.parametrize("pool", ["free", "total"])
def test_a_server_holds_room_for_its_largest_pass_whoever_comes(pool: str) -> None:
    """So that more clients never find less of a cache, and get fewer tokens."""
    one, many = (
        serving_memory(DENSE, NODE, served(batch=batch, input_len=100.0, pool=pool), RUN)
        for batch in (1.0, 500.0)
    )
    assert float(one.classes["activations"]) == float(many.classes["activations"])
    assert float(one.sequences) == float(many.sequences)


def test_stages_have_whole_layers_and_one_table_each() -> None:
    """Six layers on four stages: two on the fullest."""
    found = serving_memory(DENSE, NODE, served(pp=4.0), RUN)
    weights = 2 * (2 * LAYER + V * H / TP + H)
    assert float(found.classes["weights"]) == exact(weights)
    assert float(found.per_sequence) == exact(1200 * 2 * 2 * 2 * KV / TP * D)


def test_one_sequence_is_held_however_little_room_there_is() -> None:
    """So that a plan that does not fit says by how much."""
    device = replace(DEVICE, memory=1e8)
    found = serving_memory(DENSE, replace(NODE, accelerator=device), served(), RUN)
    assert float(found.classes["cache"]) == float(found.per_sequence)
    assert float(found.sequences) == 0


def test_windows_bound_the_cache_of_their_layers() -> None:
    """Half of the layers see 128 tokens at most."""
    model = replace(DENSE, sliding_window=128, sliding_pattern="alternating")
    token = L * 2 * 2 * KV / TP * D
    found = serving_memory(model, NODE, served(), RUN)
    assert float(found.per_sequence) == exact(token * (600 + 64))


def test_a_pool_of_what_is_left_is_nine_tenths_of_it() -> None:
    """Nine tenths of memory less weights, activations and runtime."""
    found = serving_memory(DENSE, NODE, served(pool="free"), RUN)
    fixed = sum(float(found.classes[n]) for n in ("weights", "activations", "runtime"))
    token = L * 2 * 2 * KV / TP * D
    assert float(found.sequences) == math.floor(0.9 * (MEMORY - fixed) / (1200 * token))


def test_experts_of_a_served_mixture() -> None:
    """Four mixtures behind two dense layers; eight ranks hold three experts each."""
    found = serving_memory(MIXED, NODE, served(tp=8.0, ep=8.0, weights="fp8"), RUN)
    attention = H * (2 * HEADS / 8 + 2 * 1) * D + H
    dense = FEED_FORWARD / 8 + H
    mixture = 3 * H * SHARED / 8 + H * EXPERTS + H
    experts = 4 * 3 * 3 * H * INNER
    layers = L * attention + 2 * dense + 4 * mixture + experts
    assert float(found.classes["weights"]) == exact(layers + 2 * (2 * V * H / 8 + H))
    # Widest: three copies of a token, with what lies between the two products.
    states = 2 * 4096 * (4 * H + 2 * TOP * (2 * H + 3 * INNER) / 8)
    logits = 6 * 64 * V / 8
    assert float(found.classes["activations"]) == exact(states + logits)


def test_states_take_the_place_of_a_cache() -> None:
    """Mamba-2: 32 bits of heads x channels x state, and three tokens of the convolution's input in
    16. Delta rules: keys by values of each head alike."""
    hybrid = replace(
        DENSE, layers=8, attention_layers=1, mamba_layers=4, mamba_heads=10, mamba_head_dim=32,
        mamba_state=16, mamba_groups=4,
    )  # fmt: skip
    scan = 4 * 10 / TP * 32 * 16
    seen = 2 * 3 * (10 * 32 + 2 * 4 * 16) / TP
    assert float(state_bytes(hybrid, served())) == exact(4 * (scan + seen))
    delta = replace(
        DENSE, delta_layers=3, delta_key_heads=4, delta_value_heads=8, delta_key_dim=32,
        delta_value_dim=96,
    )  # fmt: skip
    rule = 4 * 8 / TP * 32 * 96
    mixed = 2 * 3 * (2 * 4 * 32 + 8 * 96) / TP
    assert float(state_bytes(delta, served())) == exact(3 * (rule + mixed))
    found = serving_memory(hybrid, NODE, served(), RUN)
    token = 1 * 2 * 2 * KV / TP * D
    assert float(found.per_sequence) == exact(1200 * token + 4 * (scan + seen))


def test_weights_in_the_hosts_memory_come_two_layers_at_a_time() -> None:
    own = served(offload="weights", host_memory=64e9)
    found = serving_memory(DENSE, NODE, own, RUN)
    weights = 2 * (L * LAYER + 2 * V * H / TP + H)
    assert float(found.classes["weights"]) == exact(weights * 2 / L)
    assert float(found.classes["cache"]) == 0
    token = L * 2 * 2 * KV / TP * D
    room = 0.9 * 64e9 / float(own.gpus) - weights
    assert float(found.sequences) == math.floor(room / (1200 * token))


def test_what_is_missing_is_what_exceeds_the_capacity() -> None:
    small, large = (
        serving_memory(DENSE, NODE, served(batch=n, serving=0.0), RUN) for n in (2.0, 1e5)
    )
    assert (float(small.fits), float(small.shortfall)) == (1.0, 0.0)
    assert float(large.fits) == 0.0
    assert float(large.shortfall) == exact(float(large.total - large.capacity))


def test_adapters_that_are_live_take_memory_and_leave_fewer_sequences() -> None:
    """Two matrices of rank r in 16 bits beside every product of a layer: r (k + n) elements each.
    No more adapters are live than sequences ask for, or slots hold."""
    model = catalog.model("llama3-8b")
    plan = ServingPlan(batch=64.0, serving=1.0, input_len=500.0, output_len=100.0)
    h, kv, inner = 4096, 1024, 14336
    # Queries, keys and values; what attention gives; gate and up; down.
    sides = [(h, h + 2 * kv), (h, h), (h, 2 * inner), (inner, h)]
    one = 2 * 32 * model.layers * sum(k + n for k, n in sides)

    def found(**fields: float) -> ServingMemory:
        own = replace(plan, adapter_rank=32.0, **fields)
        return serving_memory(model, catalog.system("dgx-h100"), own, RunParameters())

    bare, some = found(), found(adapters=10.0)
    assert "adapters" not in bare.classes
    assert float(some.classes["adapters"]) == exact(10 * one)
    assert float(found(adapters=1000.0).classes["adapters"]) == exact(64 * one)
    few = found(adapters=10.0, adapter_slots=4.0)
    assert float(few.classes["adapters"]) == exact(4 * one)
    lost = float(bare.sequences - some.sequences)
    assert lost == pytest.approx(10 * one / float(bare.per_sequence), abs=1.0)


def test_a_second_tower_is_divided_where_its_heads_are() -> None:
    """16-bit weights of one layer of a tower of eight heads: on two ranks half each, on three,
    which do not divide eight, all of them; without images none."""
    eight = Tower("vision", layers=1, hidden=64, heads=8, ffn_hidden=256, patches=9, tokens=9,
                  patch_width=12)  # fmt: skip
    seeing = replace(DENSE, heads=24, kv_heads=24, tower=eight)
    whole = 2 * tower_parameters(eight, H)
    for tp, share in ((1.0, 1.0), (2.0, 0.5), (3.0, 1.0)):
        told = float(np.asarray(tower_bytes(seeing, served(tp=tp, tiles=1.0))))
        assert told == exact(share * whole)
    assert float(np.asarray(tower_bytes(seeing, served(tiles=0.0)))) == 0.0


def test_adapters_that_one_request_asks_for_are_there_once() -> None:
    """Of five, as many as there are slots and requests that ask for one each; one at least."""
    one = adapter_bytes(DENSE, served(adapters=1.0, adapter_rank=8.0))
    for batch, slots, many in ((1.0, 0.0, 1), (3.0, 0.0, 3), (3.0, 2.0, 2), (40.0, 0.0, 5)):
        made = served(batch=batch, serving=0.0, adapters=5.0, adapter_rank=8.0, adapter_slots=slots)
        found = serving_memory(DENSE, NODE, made, RUN).classes
        assert float(found["adapters"]) == exact(many * float(one))
