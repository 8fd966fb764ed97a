"""Layers without attention, feed-forward blocks of several widths, and copies of the residual
stream: kernels, caches, collectives and weights by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor.catalog.forms import parse
from predictor.catalog.specs import TrainingPlanSpec
from predictor.errors import InputError
from predictor.memory.serving import weight_bytes
from predictor.memory.training import lay_out
from predictor.plans.rules import training_rules
from predictor.timing.calibration import RunParameters
from predictor.training.completion import complete_training
from predictor.work.communication import step_collectives
from predictor.work.serving import (
    cache_bytes,
    end_operators,
    layer_operators,
    pass_collectives,
)
from predictor.work.training import step_operators
from tests.predictor.work.counts import (
    DENSE,
    FFN,
    HEADS,
    KV,
    OWN,
    TP,
    D,
    H,
    T,
    V,
    check,
    layer,
    norm,
    product,
    residual,
    served,
    stream,
    swiglu,
    trained,
)

WIDTHS = ((1, FFN), (2, 512))
UNEVEN = replace(DENSE, bare_layers=3, ffn_widths=", ".join(f"{n} x {w}" for n, w in WIDTHS))
"""Of five layers two have attention, and three a feed-forward block, of two widths."""


def test_blocks_of_each_width_in_training() -> None:
    """Every kernel of the block, at each width; as often as there are blocks of it."""
    found = step_operators(UNEVEN, trained())
    counts = {o.name: o.count for o in found if o.name == "attention.qkv"}
    assert counts["attention.qkv"] == pytest.approx(2 / 5)
    for blocks, width in WIDTHS:
        own = [o for o in found if o.module == "dense" and o.count == pytest.approx(blocks / 3)]
        kept = 2 * T * H // TP
        expected = (
            norm("mlp.norm", OWN, H)
            | layer("mlp.up", T, 2 * width / TP, H, kept)
            | swiglu("mlp.activation", T, width / TP)
            | layer("mlp.down", T, H, width / TP, 2 * T * width / TP)
            | residual("mlp.residual", OWN)
        )
        check(own, expected, ("mlp",))


def test_tokens_are_cached_where_there_is_attention() -> None:
    two, five = (cache_bytes(one, served(), 100.0) for one in (UNEVEN, DENSE))
    assert two / 2 == pytest.approx(five / 5)
    assert two == 2 * 2 * 2 * KV * D * 100.0 / TP


def test_ranks_add_up_what_there_is() -> None:
    counts = {c.name: c.count for c in pass_collectives(UNEVEN, served(), 10.0, 1.0)}
    assert (counts["attention.reduce"], counts["mlp.reduce"]) == (2.0, 3.0)
    found = [c for c in step_collectives(UNEVEN, trained()) if c.group == "tp"]
    often = sum(c.count for c in found if c.module == "layer")
    every = sum(c.count for c in step_collectives(DENSE, trained())
                if c.group == "tp" and c.module == "layer")  # fmt: skip
    assert often == pytest.approx(every * 2 / 5)


def test_weights_are_those_of_the_model() -> None:
    """In 16 bits, halved by two ranks but for norms, of which there is one for each block."""
    norms = (2 + 3 + 1) * H
    matrices = UNEVEN.parameters - norms
    assert weight_bytes(UNEVEN, served()) == pytest.approx(2 * (matrices / TP + norms))
    found = lay_out(UNEVEN, trained()).parameters
    assert float(np.max(found.layers)) == pytest.approx(matrices / TP + norms - H - 2 * V * H / TP)


def test_ranks_divide_every_width() -> None:
    odd = replace(UNEVEN, ffn_widths=f"1 x {FFN}, 2 x 513")
    broken = [r.message for r in training_rules(trained(), odd) if np.any(r.broken)]
    assert broken == ["tp {tp} does not divide the feed-forward width 513 of dense"]


N, NARROW, INPUT = 4, 64, 16
COPIED = replace(DENSE, alternating_streams=N, laurel_rank=NARROW, layer_inputs=INPUT,
                 tied_embeddings=True)  # fmt: skip
TOKENS = 7


def test_copies_of_the_residual_stream_while_serving() -> None:
    """Two norms and routers of as many columns as copies. Predictions: a product that reads and
    writes all copies, and their sum, which reads two of each and writes one; corrections read all
    and the outcome, and write all; what the layer's input adds goes to all but one, read and
    written. Beside attention a product of a rank's part of the narrow width, there and back, its
    norm and a sum."""
    found = layer_operators(COPIED, served(), float(TOKENS))
    expected = {
        **{f"altup.{name}_norm": stream(TOKENS, H, 4) for name in ("predict", "correct")},
        **{f"altup.{name}_router": product(TOKENS, N, H) for name in ("predict", "correct")},
        "altup.predict": stream(TOKENS, H, 2 * (2 * N + 3 * N)),
        "altup.correct": stream(TOKENS, H, 2 * (2 * N + 1)),
        "altup.inputs": stream(TOKENS, H, 2 * (2 * (N - 1) + 1)),
        "laurel.left": product(TOKENS, NARROW / TP, H),
        "laurel.right": product(TOKENS, H, NARROW / TP),
        "laurel.norm": stream(TOKENS, H, 4),
        "laurel.add": stream(TOKENS, H, 6),
    }
    check(found, expected, ("altup", "laurel"))
    assert all(o.count == 5 for o in found if o.name.startswith(("altup", "laurel")))
    assert not [o for o in found if o.name == "input.residual"]


def test_copies_are_made_and_taken_together() -> None:
    """Three products of the width; each is read for its length, read again and written; the first
    is read once more for its own, and at the end all are read and one written."""
    found = {o.name: o for o in end_operators(COPIED, served(), float(TOKENS), 1.0)}
    for name, more in (("altup.start", 1), ("altup.end", N + 1)):
        assert found[name].flop == pytest.approx(3 * 2 * TOKENS * H * H)
        assert found[name].bytes == pytest.approx(3 * (2 * H * H + 4 * TOKENS * H))
        assert found[f"{name}_scale"].bytes == 2 * TOKENS * H * (3 * 3 + more)


def test_ranks_add_up_the_product_beside_attention() -> None:
    found = {c.name: c for c in pass_collectives(COPIED, served(), float(TOKENS), 1.0)}
    assert found["laurel.reduce"].count == 5
    assert found["laurel.reduce"].bytes == 2 * TOKENS * H


def test_weights_of_copies() -> None:
    """Whole on every rank: routers, predictions, corrections, norms and scales, the layers' inputs,
    what makes and takes copies; the rest is divided."""
    copies = N * H + N * N * N + N * N + 2 * H
    whole = 5 * (copies + H + 2 * H * INPUT) + 2 * (N - 1) * H * H + H * 5 * INPUT
    norms = (3 * 5 + 1) * H
    split = 5 * (H * (HEADS + 2 * KV) * D + HEADS * D * H + 3 * H * FFN + 2 * H * NARROW)
    table = V * (H + 5 * INPUT)
    assert COPIED.parameters == whole + norms + split + table
    assert weight_bytes(COPIED, served()) == pytest.approx(
        2 * (whole + norms + (split + table) / TP)
    )


def test_copies_are_served_alone() -> None:
    asked = {"model": "gemma-3n-e4b", "system": "dgx-h100", "seq_len": 4096, "global_batch": 64}
    with pytest.raises(InputError, match="alternating updates of its residual stream"):
        complete_training(parse(TrainingPlanSpec, asked, "test"), RunParameters())
