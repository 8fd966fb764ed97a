"""What is kept of kernels and adapters, and what hosts are, by hand and by their sheets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor import catalog
from predictor.memory import lay_out, memory, offload
from predictor.memory.offload import host_link, node_memory, update_time
from predictor.plans import TrainingPlan
from predictor.timing import RunParameters
from tests.predictor.dense import dense

SMALL = dense(layers=3, heads=10, kv_heads=5, ffn_hidden=1792, vocab=512)
TOKENS = 2 * 256


def plan(**fields: object) -> TrainingPlan:
    given = {"tp": 1.0, "pp": 1.0, "dp": 1.0, "micro_batch": 2.0, "global_batch": 2.0}
    given |= {"seq_len": 256.0, "vocab_multiple": 1.0, **fields}
    return TrainingPlan(**given)  # type: ignore[arg-type]


def test_adapters_have_two_sides() -> None:
    """r (k + n) beside every product of every layer, as a hand counts them; nothing else of the
    model has gradients."""
    made = plan(trained="lora", lora_rank=16.0)
    own = lay_out(SMALL, made).parameters
    sides = [(640, 640), (640, 2 * 320), (640, 640), (640, 2 * 1792), (1792, 640)]
    queries, keys, out, up, down = ((k, n) for k, n in sides)
    each = sum(k + n for k, n in (out, up, down)) + (queries[0] + queries[1] + keys[1])
    assert float(own.adapters[2]) == pytest.approx(3 * 16 * each, rel=1e-14)
    assert float(own.dense.trained[2]) == float(own.adapters[2])
    assert float(own.expert.trained[2]) == 0.0


def test_a_layer_starts_from_its_norms_input() -> None:
    """In 16 bits, however narrow the products' own inputs are kept."""
    made = plan(recompute="full", precision="fp8")
    found = memory(SMALL, made, RunParameters(context=0.0, fragmentation=0.0)).classes
    assert float(found["activations"][2]) == 3 * 2 * TOKENS * 640


def test_hosts_are_those_of_their_sheets() -> None:
    """Pinned copies: 26 of 31.5 GB/s on PCIe 4, 53 of 63 on 5. Two sockets of eight DDR4-3200
    channels for eight accelerators: 8 B x 3.2e9 x 16 / 8 = 51 GB/s. A PCIe 4 drive of a DGX reads
    6.8 GB/s and writes four. Coherent links (NVLink-C2C: 450 GB/s each way) lie beyond PCIe 6's
    126."""
    assert pytest.approx(26 / 31.5, rel=0.03) == offload.PINNED
    assert pytest.approx(53 / 63, rel=0.03) == offload.PINNED
    assert pytest.approx(8 * 3.2e9 * 16 / 8, rel=0.05) == offload.HOST_MEMORY
    assert (offload.NVME_READ, offload.NVME_WRITE) == (6.8e9, 4.0e9)
    assert 126e9 < offload.COHERENT < 450e9


def test_an_update_on_hosts_takes_what_the_measured_ones_took() -> None:
    """A billion parameters on each of eight ranks: some 1.9 s (`ADAM`)."""
    states = {"optimizer_bytes": 12.0, "gradient_bytes": 4.0, "weight_bytes": 2.0}
    made = plan(dp=8.0, global_batch=64.0, offload_optimizer=1.0, **states)
    node = catalog.system("dgx-h200")
    device = node.accelerator
    found = float(update_time(made, node, np.array(1e9), np.array(0.0)))
    assert found == pytest.approx(1.9, rel=0.05)
    coherent = replace(device, host_bandwidth=450e9)
    near = replace(node, accelerator=coherent)
    assert float(update_time(made, near, np.array(1e9), np.array(0.0))) == pytest.approx(
        found * offload.HOST_MEMORY / 450e9
    )
    assert host_link(device) == offload.PINNED * device.host_bandwidth


def test_an_unknown_host_is_between_the_quarter_and_the_half_of_those_known() -> None:
    """Of the catalog's nodes that state it."""
    known = []
    for name in catalog.tables.rows("systems"):
        cluster = catalog.system(name)
        if not np.isnan(cluster.host_memory):
            known.append(cluster.host_memory / cluster.accelerators_per_node)
            assert node_memory(cluster) == cluster.host_memory
    assert np.quantile(known, 0.25) < offload.HOST_USUAL < np.quantile(known, 0.5)
