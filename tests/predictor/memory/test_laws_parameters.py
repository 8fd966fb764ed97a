"""Parameters are conserved: what devices hold, counted by their blocks, is what a model has."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import numpy as np
import pytest

from predictor import catalog
from predictor.memory import LAID, lay_out, weight_bytes
from predictor.memory.parameters import mixer_parameters
from predictor.models import Model
from predictor.plans import ServingPlan, TrainingPlan

NAMES = list(catalog.tables.rows("models"))


def held(model: Model, **fields: float) -> np.ndarray:
    """Parameters of a rank on first, inner and last stages, and devices of each kind, (2, 3)."""
    given = {"tp": 1.0, "pp": 1.0, "dp": 1.0, "micro_batch": 1.0, "global_batch": 8.0, **fields}
    made = TrainingPlan(**given, seq_len=4096.0, vocab_multiple=1.0, mtp=False)  # type: ignore[arg-type]
    laid = lay_out(model, made)
    own = laid.parameters
    return np.stack([own.layers + own.experts + own.ends, laid.at.count])


def served(model: Model, **fields: float) -> float:
    """Parameters of a serving rank, by their 16-bit bytes."""
    plan = ServingPlan(batch=1.0, input_len=10.0, output_len=10.0, serving=1.0, **fields)  # type: ignore[arg-type]
    return float(weight_bytes(model, plan)) / 2.0


def bare(name: str) -> Model:
    """A model without tables of n-grams, which all devices divide (tests/predictor/work/
    test_training_ngrams.py) and which are served in 8 bits (test_shared_keys.py)."""
    return replace(catalog.model(name), ngram_layers=0, ngram_rows=0)


def test_a_device_that_has_a_model_has_its_parameters() -> None:
    """To the last one, of training and of serving: latents' norms, biases, mixed streams."""
    for name in NAMES:
        model = bare(name)
        both = float(held(model)[0, 2]), served(model)
        assert both == pytest.approx((model.parameters, model.parameters), rel=1e-14), name


def test_training_and_serving_divide_a_model_alike() -> None:
    """On ranks that split its matrices, more of them than some have key heads, and its experts; all
    of them together hold it whole, some of it more than once."""
    for name in NAMES:
        own = bare(name)
        model = replace(own, vocab=-(-own.vocab // 16) * 16)
        for tp in (2.0, 16.0):
            for ep in (1.0, 2.0) if model.is_moe else (1.0,):
                trained = float(held(model, tp=tp, ep=ep, etp=tp / ep)[0, 2])
                assert trained == pytest.approx(served(model, tp=tp, ep=ep), rel=1e-12), name
                assert trained * tp >= model.parameters * (1.0 - 1e-12), name


@pytest.mark.parametrize("name", ["llama3-8b", "mixtral-8x7b", "deepseek-v2-lite", "gpt2-1.5b"])
def test_stages_of_a_pipeline_have_a_model_among_them(name: str) -> None:
    """Each layer once, a tied table at both ends; more copies of nothing else."""
    model = catalog.model(name)
    for pp in (2.0, 4.0):
        whole = replace(model, layers=16, tied_embeddings=False, dense_layers=0)
        own, many = held(whole, pp=pp)
        assert float((own * many).sum()) == pytest.approx(whole.parameters, rel=1e-12)
        tied = replace(whole, tied_embeddings=True)
        more = held(tied, pp=pp)[0] - own
        assert more.tolist() == pytest.approx([0.0, 0.0, 0.0], abs=1e-3)


def test_mixtures_of_norms_without_biases() -> None:
    """A block of experts has a norm, and biases only where its experts have some."""
    model = catalog.model("phi-3.5-moe")
    assert model.bias
    assert not model.expert_bias
    norm, attention = 2 * 4096, 4096 + 2 * 1024 + 4096
    assert model.vector_parameters == 32 * (2 * norm + attention) + norm
    latent = catalog.model("deepseek-v2-lite")
    assert latent.vector_parameters == 27 * (2 * 2048 + 512) + 2048


@pytest.mark.parametrize(
    ("tp", "heads", "keys"), [(1.0, 12, 4), (2.0, 6, 2), (4.0, 3, 1), (12.0, 1, 1)]
)
def test_a_rank_has_its_heads_and_whole_key_heads(tp: float, heads: int, keys: int) -> None:
    """Query heads of 48 and what they give back, keys and values of its key heads, at least one,
    and a norm; index queries go with key heads, and every rank has the one index key whole."""
    plain = Model(
        name="plain", layers=6, hidden=640, heads=12, kv_heads=4, head_dim=48, ffn_hidden=1792,
        vocab=3072,
    )  # fmt: skip
    own = 640 * 48 * (2 * heads + 2 * keys) + 640
    assert float(mixer_parameters(plain, tp)) == pytest.approx(own, rel=1e-12)
    index = replace(plain, index_heads=4, index_head_dim=40, index_topk=128, index_block=64)
    own += 640 * 40 * (keys + 1)
    assert float(mixer_parameters(index, tp)) == pytest.approx(own, rel=1e-12)


@pytest.mark.parametrize("name", ["llama3-70b", "deepseek-v3", "nemotron-h-8b", "gpt3-175b"])
@pytest.mark.parametrize("schedule", ["1f1b", "zb-v", "dualpipe"])
def test_a_layout_reads_what_it_is_told_apart_by(name: str, schedule: str) -> None:
    """Layouts of a search are told once for plans that are alike in these fields."""

    seen: set[str] = set()

    class Watched(TrainingPlan):
        def __getattribute__(self, field: str) -> object:
            seen.add(field)
            return super().__getattribute__(field)

    made = Watched(
        tp=2.0, pp=4.0, dp=2.0, micro_batch=1.0, global_batch=16.0, seq_len=4096.0, vpp=2.0,
        ep=2.0, schedule=schedule,
    )  # fmt: skip
    assert made.shape == ()  # which reads all numbers, and is remembered
    seen.clear()
    lay_out(catalog.model(name), made)
    fields = {field.name for field in dataclasses.fields(TrainingPlan)}
    assert "tp" in seen
    assert seen & fields <= set(LAID)
