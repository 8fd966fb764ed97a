"""Second towers whose images and windows attend one after the other, and frozen ones through which
gradients pass all the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.catalog.forms import parse
from predictor.catalog.specs import TrainingPlanSpec
from predictor.models import Model, Tower, encoder
from predictor.training import towers
from predictor.training.calls import HOOKED_EACH, LOOPED, calls
from predictor.training.completion import TrainingRequest, complete_training
from predictor.training.uneven import dealt_step
from predictor.work import EACH, step_operators

KNOWN = load("default")
FOLDER = catalog.data_dir() / "measurements"
IMAGES = pd.read_csv(FOLDER / "h200-sxm-5" / "images.csv")
WINDOWS = pd.read_csv(FOLDER / "two-cores-6" / "windows.csv")
BLOCKS = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16,
          "out_hidden_size": 2048, "patch_size": 14, "spatial_merge_size": 2,
          "temporal_patch_size": 2, "window_size": 112,
          "fullatt_block_indexes": [7, 15, 23, 31]}  # fmt: skip
CONFIG = {
    "model_type": "qwen2_5_vl", "vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 36,
    "num_attention_heads": 16, "num_key_value_heads": 2, "intermediate_size": 11008,
    "tie_word_embeddings": True, "vision_config": {"model_type": "qwen2_5_vl", **BLOCKS},
}  # fmt: skip
"""Of Qwen2.5-VL-3B (Qwen/Qwen2.5-VL-3B-Instruct, config.json)."""
LOOP = {"system": "dgx-h200", "gpus": 1, "global_batch": 2, "micro_batch": 2, "seq_len": 2048,
        "images": 4, "framework": "huggingface", "era": "2026-11", "sharding": "none",
        "weight_bytes": 2, "gradient_bytes": 2, "reduce_bytes": 2, "gather_bytes": 2,
        "optimizer_bytes": 4, "recompute": "none"}  # fmt: skip


@pytest.fixture(scope="module")
def sees(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return catalog.model(CONFIG)


def complete(model: Model, **fields: Any) -> TrainingRequest:
    return complete_training(
        parse(TrainingPlanSpec, {**LOOP, **fields}, "test"), KNOWN.run, model=model
    )


def layer(model: Model, **fields: Any) -> towers.TowerLayer:
    request = complete(model, **fields)
    assert request.seen is not None
    return towers.tower_layer(model, request.cluster, request.plan, KNOWN, request.seen)


def test_a_file_says_what_attends_by_itself(sees: Model) -> None:
    """Windows of 8 x 8 patches in 28 layers of 32, by the file; what code without a kernel for any
    lengths makes of several images, by the type."""
    tower = sees.tower
    assert tower is not None
    assert (tower.window, tower.whole, tower.several) == (64, 4, "loop")
    assert tower.sequences(8.0) == [(28 / 32, 64.0, 8.0 * 16), (4 / 32, 1024.0, 8.0)]
    kinds = {"qwen2_vl": "loop", "qwen3_vl_moe": "loop", "pixtral": "mask", "siglip": "batch"}
    own = {
        name: value for name, value in BLOCKS.items() if "window" not in name and name[:4] != "full"
    }
    for kind, several in kinds.items():
        found = catalog.model(
            {**CONFIG, "model_type": "llava", "vision_config": {"model_type": kind, **own}}
        ).tower
        assert found is not None
        assert (found.window, found.several) == (0, several)
        assert [share for share, _, _ in found.sequences(3.0)] == [1.0]


def test_sequences_of_all_kinds_have_every_patch_once() -> None:
    tower = Tower(
        "vision", 8, 64, 4, 256, patches=1024, tokens=256, patch_width=588, window=64, whole=2
    )
    for several in ("batch", "loop", "mask"):
        found = tower.sequences(np.array([0.5, 1.0, 6.0]), several)
        assert sum(share for share, _, _ in found) == pytest.approx(1.0)
        for _, patches, many in found:
            np.testing.assert_allclose(patches * many, [512.0, 1024.0, 6144.0])


def test_every_window_is_a_call_of_its_own(sees: Model) -> None:
    """128 of two sequences' four images, forward and backward; hooks where it runs again."""
    tower = sees.tower
    assert tower is not None
    request = complete(sees, recompute="full")
    assert request.seen is not None
    (_, one), (_, whole) = towers._plans(sees, request.plan, request.seen)
    for plan, count in ((one, 128.0), (whole, 8.0)):
        each = [o for o in step_operators(encoder(tower, True), plan) if o.name.startswith(EACH)]
        assert {o.phase: float(o.count) for o in each} == dict.fromkeys(
            ("forward", "recompute", "backward"), count
        )
        assert {o.phase: calls(o, plan) for o in each} == {
            "forward": LOOPED, "recompute": LOOPED * HOOKED_EACH, "backward": LOOPED,
        }  # fmt: skip
        at_once = [o for o in step_operators(encoder(tower), plan) if o.op.startswith("attention")]
        assert {float(o.count) for o in at_once} == {1.0}
        for looped, joined in zip(each, at_once, strict=True):
            assert float(looped.count * looped.flop) == pytest.approx(float(joined.flop))
            assert float(looped.count * looped.saved) == pytest.approx(float(joined.saved))


@pytest.mark.parametrize("fields", [{"windows_masked": False}, {"framework": "torchtitan"}])
def test_a_kernel_for_any_lengths_has_one_call(sees: Model, fields: dict[str, Any]) -> None:
    """FlashAttention's, and what other frameworks run."""
    quick, slow = layer(sees, **fields), layer(sees)
    assert sum(quick.passes) < 0.2 * sum(slow.passes)
    assert quick.terms["host"] == 0.0 or quick.terms["host"] < 0.1 * slow.terms["host"]


def test_images_behind_a_mask_are_one_sequence(sees: Model) -> None:
    """Attention of all tiles of a micro-batch over all of them."""
    own = {
        name: value for name, value in BLOCKS.items() if "window" not in name and name[:4] != "full"
    }
    packed = catalog.model(
        {
            **CONFIG,
            "model_type": "llava",
            "vision_config": {"model_type": "pixtral", "image_size": 448, **own},
        }
    )
    ((_, plan),) = towers._plans(packed, (r := complete(packed)).plan, r.seen)  # type: ignore[arg-type]
    tower = packed.tower
    assert tower is not None
    assert (float(plan.seq_len), float(plan.micro_batch)) == (8.0 * tower.patches, 1.0)


def test_gradients_pass_through_a_frozen_tower_that_is_checkpointed(sees: Model) -> None:
    """From Transformers 5 on: forward, again and back, no gradients of weights, nothing to update;
    before, and without checkpoints, forward alone."""
    whole = layer(sees, recompute="full")
    through = layer(sees, recompute="full", tower="frozen")
    assert through.passes[0] == pytest.approx(whole.passes[0])
    assert 0.0 < through.passes[1] <= whole.passes[1]
    assert through.passes[2] == 0.0
    assert sum(through.ends.values()) == 0.0
    assert through.activations == whole.activations
    for fields in ({"recompute": "none"}, {"recompute": "full", "stops_early": False}):
        ahead = layer(sees, tower="frozen", **fields)
        assert ahead.passes[0] > 0.0
        assert ahead.passes[1:] == (0.0, 0.0)
        assert ahead.activations == 0.0


def test_hooks_take_a_window_as_much_longer_as_measured() -> None:
    """On a processor, where attention keeps five tensors and not seven."""
    took = WINDOWS.groupby("checkpoints")["window_us"].mean()
    more = (took["hooks"] - took["none"]) / took["none"]
    assert more == pytest.approx(HOOKED_EACH / 2.0 * 5.0 / 7.0, rel=0.1)


def test_steps_of_a_model_that_sees_take_what_is_predicted(sees: Model) -> None:
    """Qwen2.5-VL 3B on an H200: 0.13 to 0.43 of what they took while windows were one call; now the
    tower, of which the host takes nine tenths, within a fifth."""
    off = []
    for row in IMAGES.to_dict("records"):
        fields = {name: row[name] for name in ("seq_len", "images", "tower", "recompute")}
        fields |= dict.fromkeys(("global_batch", "micro_batch"), row["sequences"])
        found, _ = dealt_step(complete(sees, **fields), KNOWN)
        off.append(float(found.step_time) / row["value"] - 1.0)
    assert len(off) == 3
    assert np.abs(off).max() < 0.22
    assert np.mean(np.abs(off)) < 0.1
