"""Tables of n-grams while they are trained: kernels, what lies on a device, and what travels, by
hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog.forms import parse
from predictor.catalog.specs import TrainingPlanSpec
from predictor.memory import lay_out, memory, table_parameters
from predictor.timing.calibration import RunParameters
from predictor.training.completion import complete_training
from predictor.training.frame import frame
from predictor.work.communication import groups, step_collectives
from predictor.work.training import step_operators
from tests.predictor.work.counts import (
    DENSE,
    OWN,
    TP,
    Count,
    H,
    T,
    check,
    product,
    stream,
    trained,
)
from tests.predictor.work.served import CALIBRATION

ROWS, LOOKUPS, WIDTH, STREAMS, TAPS = 4096, 6, 32, 3, 4
FOUND = LOOKUPS * WIDTH
TABLED = replace(DENSE, ngram_layers=2, ngram_rows=ROWS, ngram_lookups=LOOKUPS, ngram_width=WIDTH)
"""Two of five layers look up rows of one residual stream."""

TRAINED = ("deepseek-v4.1-flash", "qwen3.8-flash-next", "longcat-flash-lite")


def kernels(streams: int, taps: int) -> dict[str, Count]:
    """Rows read and written in 16 bits, as many on each rank; gradients and sums read, sums
    written. What a rank's own part of the sequence found is projected to a key for each stream and
    a value. These and the streams are read, and the streams written; their gradients read beside
    them, and one written for each. A norm and a convolution read and write the streams, and are
    read once more."""
    columns = (streams + 1) * H
    kept = 2 * OWN * FOUND
    moved, back = 3 * streams + 1, 5 * streams + 2
    found = {
        "ngrams.lookup": Count(0.0, T * FOUND / TP * 4),
        "ngrams.lookup.bwd": Count(0.0, T * FOUND / TP * 6),
        "ngrams.project": product(OWN, columns, FOUND, kept),
        "ngrams.project.dgrad": product(OWN, FOUND, columns),
        "ngrams.project.wgrad": product(columns, FOUND, OWN, out=4),
    }
    if taps:
        moved, back = moved + 2 * streams, back + 3 * streams
        found["ngrams.conv"] = stream(OWN, H, 4 * streams, 2 * OWN * H * streams)
        found["ngrams.conv.bwd"] = stream(OWN, H, 6 * streams)
    kept = 2 * OWN * (columns + streams * H)
    return found | {
        "ngrams.add": stream(OWN, H, 2 * moved, kept),
        "ngrams.add.bwd": stream(OWN, H, 2 * back),
    }


@pytest.mark.parametrize(("streams", "taps"), [(1, 0), (STREAMS, 0), (STREAMS, TAPS)])
def test_kernels_of_a_layer_with_a_table(streams: int, taps: int) -> None:
    model = replace(TABLED, streams=streams if streams > 1 else 0, ngram_taps=taps)
    found = step_operators(model, trained())
    check(found, kernels(streams, taps), ("ngrams",))
    assert {o.count for o in found if o.name.startswith("ngrams")} == {2 / 5}


def test_words_of_several_tokens_in_the_embedding() -> None:
    """Projected to the model's width, and added: two read and one written, both ways."""
    model = replace(TABLED, ngram_layers=1, ngram_embedding=True)
    found = {o.name: o for o in step_operators(model, trained())}
    assert found["ngrams.project"].n == H
    for name in ("ngrams.add", "ngrams.add.bwd"):
        assert float(found[name].bytes) == OWN * H * 6
        assert found[name].count == pytest.approx(1 / 5)


def test_rows_travel_among_all_devices() -> None:
    """To the part of the sequence that a rank has, there and back; where tensor-parallel ranks have
    all of it, they gather what each was sent. Again where layers are computed again; no gradients
    go back to a table that is frozen."""
    plan = trained(pp=5.0, dp=2.0)
    assert float(groups(plan)["tables"].size) == TP * 5 * 2
    found = {c.name: c for c in step_collectives(TABLED, plan) if c.name.startswith("ngrams")}
    for name in ("ngrams.rows", "ngrams.rows.bwd"):
        one = found[name]
        assert (one.op, one.group, float(one.count)) == ("alltoall", "tables", 2 / 5)
        assert float(one.bytes) == 2 * OWN * FOUND
    assert float(found["ngrams.gather"].count) == 0
    whole = {c.name: c for c in step_collectives(TABLED, trained(sequence_parallel=0.0))}
    assert float(whole["ngrams.gather"].count) == 2 / 5
    assert float(whole["ngrams.gather"].bytes) == 2 * T * FOUND
    again = {c.name: c for c in step_collectives(TABLED, trained(recompute="full"))}
    assert float(again["ngrams.rows.again"].count) == 2 / 5
    frozen = {c.name: c for c in step_collectives(TABLED, trained(trained="lora"))}
    assert float(frozen["ngrams.rows.bwd"].count) == 0


@pytest.mark.parametrize("name", TRAINED)
def test_a_device_that_has_a_model_has_its_parameters(name: str) -> None:
    model = catalog.model(name)
    plan = trained(tp=1.0, mtp=False)
    own = lay_out(model, plan).parameters
    held = float((own.layers + own.experts + own.ends)[2] + table_parameters(model, plan).weights)
    assert held == pytest.approx(model.parameters, rel=1e-12)


def test_all_devices_divide_the_tables() -> None:
    """18 bytes for each parameter, of which a device has its part whatever is sharded."""
    plan = trained(pp=5.0, dp=2.0)
    bare = replace(TABLED, ngram_rows=0, ngram_width=0, ngram_layers=0)
    name = "embedding and head weights and optimizer"
    found = [memory(one, plan, RunParameters()).classes[name] for one in (TABLED, bare)]
    part = 18.0 * ROWS * WIDTH / (TP * 5 * 2)
    assert np.asarray(found[0] - found[1]).ravel().tolist() == pytest.approx([part] * 3)
    frozen = table_parameters(TABLED, trained(trained="lora"))
    assert (float(np.asarray(frozen.trained)), float(np.asarray(frozen.weights))) == (
        0.0, ROWS * WIDTH / TP,
    )  # fmt: skip


@pytest.mark.parametrize("name", TRAINED)
def test_models_with_tables_are_trained(name: str) -> None:
    asked = {"model": name, "system": "dgx-b200", "seq_len": 4096, "global_batch": 64}
    request = complete_training(parse(TrainingPlanSpec, asked, "test"), RunParameters(), False)
    assert request.model.ngram_layers


def test_the_optimizer_updates_its_part_of_the_tables() -> None:
    """So many more parameters, as if the layers had them."""
    plan = trained(pp=5.0, dp=2.0)
    part = 10_000_000.0
    rows = int(part * TP * 5 * 2) // WIDTH
    wide, narrow = (
        frame(replace(TABLED, ngram_rows=n), catalog.system("DGX-H200"), plan, CALIBRATION)
        for n in (rows, TP * 5 * 2)
    )
    more = np.asarray(wide.update - narrow.update)
    moved = part * (4 + 2 * 12 + 2 + 4 * 4)  # gradient, states read and written, weight, clipping
    assert np.all(more > moved / 4.8e12)
    assert np.all(more < 3.0 * moved / 4.8e12)
