"""Dated facts of engines: which holds for a release, an accelerator and a model."""

from __future__ import annotations

import pytest

from predictor import catalog
from predictor.catalog import ServingPlanSpec, all_engines, engine_named, parse, version_of
from predictor.catalog.software import CONDITIONS
from predictor.errors import InputError
from predictor.plans import SERVING_FIELDS
from predictor.serving import complete_serving
from predictor.timing import RunParameters
from reckon import predict_infer


def assumed(**fields):
    base = {"model": "llama3-8b", "system": "dgx-h100", "input_len": 512, "output_len": 128}
    found = complete_serving(parse(ServingPlanSpec, {**base, **fields}, "test"), RunParameters())
    return found.plan, {one.field: one for one in found.assumed}


@pytest.mark.parametrize(
    ("version", "where", "model", "expected"),
    [
        # vllm/engine/arg_utils.py of each release, as vllm.yaml cites it.
        ("0.9.0", "H100-SXM5-80GB", "llama3-8b", (8192, 1024, "mixed")),
        ("0.9.0", "A100-SXM4-80GB", "llama3-8b", (2048, 256, "mixed")),
        ("0.8.5", "A100-SXM4-80GB", "llama3-8b", (8192, 1024, "mixed")),
        ("0.8.0", "B200-SXM-180GB", "llama3-8b", (2048, 1024, "mixed")),
        ("0.26.0", "B200-SXM-180GB", "llama3-8b", (8192, 1024, "mixed")),
        ("0.28.0", "B200-SXM-180GB", "llama3-8b", (16384, 1024, "mixed")),
        ("0.28.0", "L40S-48GB", "llama3-8b", (2048, 256, "mixed")),
        ("0.6.0", "H100-SXM5-80GB", "llama3.1-8b", (512, 256, "mixed")),
        ("0.6.6", "H100-SXM5-80GB", "llama3.1-8b", (2048, 256, "mixed")),
        ("0.6.0", "H100-SXM5-80GB", "llama2-7b", (4096, 256, "apart")),
    ],
)
def test_vllm_s_budget_by_release_memory_and_context(version, where, model, expected):
    plan, told = assumed(framework="vllm", version=version, accelerator=where, model=model)
    assert (plan.chunk, plan.max_batch, plan.batching) == expected
    assert told["chunk"].rule.startswith(f"vllm {version}: vllm/")


def test_a_release_decides_the_era_and_no_era_means_the_newest():
    assert assumed(framework="vllm", version="0.6.1")[0].era == "2024-09"
    assert assumed(framework="vllm")[0].scheduling == "overlapped"
    assert assumed(framework="vllm", era="2025-10")[0].scheduling == "serial"
    # What is stated counts, whatever the engine would do.
    assert assumed(framework="vllm", version="0.6.1", chunk=777)[0].chunk == 777
    tables = [assumed(framework="vllm", version=v)[0].block_tables for v in ("0.6.1", "0.9.0")]
    assert tables == ["listed", "kept"]
    assert assumed(framework="sglang")[0].block_tables == "kept"
    where = {"framework": "sglang", "model": "deepseek-v3", "batch": 64, "precision": "fp8_block"}
    chunks = [assumed(**where, tp=8, gpus=8)[0].chunk, assumed(**where, dp=16, ep=16)[0].chunk]
    assert chunks == [8192, 8192 / 16], "shared by the replicas"
    since = ("0.8.0", "0.9.0", "0.17.0")
    passes = [assumed(framework="vllm", version=v)[0].replica_passes for v in since]
    assert passes == ["apart", "padded", "waiting"]
    assert assumed(framework="sglang")[0].replica_passes == "waiting"
    fronts = [assumed(framework="vllm", version=v)[0].front_end for v in ("0.5.4", "0.6.1")]
    assert fronts == ["inside", "beside"]
    told = [assumed(framework="vllm", version=v)[0].control for v in ("0.2.6", "0.2.7")]
    assert told == ["pickled", "broadcast"]


def test_turbomind_decodes_the_last_token_of_a_prompt_before_it_reads_both_in_one_pass():
    found = [assumed(framework="lmdeploy", version=v)[0] for v in ("0.1.0", "0.2.0")]
    assert [one.last_token for one in found] == ["decoded", "read"]
    assert [one.batching for one in found] == ["apart", "mixed"]


def test_sessions_are_made_within_the_time_of_tensorrt_llm_s_benchmark_in_python():
    found = [assumed(framework="tensorrt-llm", version=v)[0].session for v in ("0.8", "0.10")]
    assert found == ["made", "kept"]


def test_vllm_s_block_scaled_experts_by_release_accelerator_and_ranks():
    """vLLM's pull requests 26197 (Hopper), 29346 (eight ranks) and 32414, as vllm.yaml has them."""

    def kernels(version, where, tp=4, precision="fp8_block"):
        fields = {"model": "qwen3-235b-a22b", "system": None, "accelerator": where, "tp": tp}
        return assumed(framework="vllm", version=version, precision=precision, **fields)[0]

    hopper, blackwell = "H200-SXM-141GB", "B200-SXM-180GB"
    found = [kernels(v, blackwell).narrow_experts for v in ("0.10.2", "0.11.0", "0.14.0", "0.16.0")]
    assert found == ["triton", "buffers", "buffers", "triton"]
    found = [kernels(v, hopper).narrow_experts for v in ("0.11.0", "0.11.1", "0.14.0", "0.17.0")]
    assert found == ["triton", "buffers", "buffers", "own"]
    found = [kernels(v, hopper, tp=8).narrow_experts for v in ("0.11.1", "0.12.0")]
    assert found == ["buffers", "triton"]
    assert kernels("0.11.1", hopper, precision="bf16").narrow_experts == "triton"


def test_narrow_experts_on_hopper_run_in_kernels_that_were_timed_with_other_engines():
    """vLLM tunes CUTLASS's as it starts, from 0.17 on; SGLang runs Triton's in fp8 and OpenAI's for
    gpt-oss (as vllm.yaml and sglang.yaml have it)."""

    def kernels(engine, model, where="H200-SXM-141GB", **fields):
        given = {"model": model, "system": None, "accelerator": where, "tp": 4, **fields}
        return assumed(framework=engine, **given)[0].narrow_experts

    mixtral, openai, blackwell = "mixtral-8x7b", "gpt-oss-120b", "B200-SXM-180GB"
    found = [kernels("vllm", mixtral, precision="fp8", version=v) for v in ("0.16.0", "0.17.0")]
    assert found == ["triton", "tuned"]
    assert kernels("vllm", mixtral, blackwell, precision="fp8", version="0.17.0") == "own"
    assert kernels("sglang", mixtral, precision="fp8") == "triton"
    assert kernels("sglang", openai) == "openai"
    assert kernels("sglang", openai, blackwell) == "own"
    assert kernels("sglang", mixtral, precision="bf16") == "own"


def test_tensorrt_llm_s_experts_and_how_far_its_sums_reach_on_blackwell():
    """Its choice of kernels by model and precision, its all-reduce over several trays; and vLLM's
    (as the files of facts have them)."""

    def plan(engine, model, where="GB200-186GB", **fields):
        given = {"model": model, "system": None, "accelerator": where, "tp": 4, **fields}
        return assumed(framework=engine, **given)[0]

    ours, deepseek = "tensorrt-llm", "deepseek-v3"
    assert plan(ours, "gpt-oss-120b", version="1.1").narrow_experts == "generated"
    assert plan(ours, "gpt-oss-120b", "H200-SXM-141GB", version="1.1").narrow_experts == "own"
    found = [plan(ours, deepseek, version=v, precision="fp8_block") for v in ("1.1", "1.3")]
    assert [one.narrow_experts for one in found] == ["own", "generated"]
    assert plan(ours, deepseek, version="1.3", precision="nvfp4").narrow_experts == "own"
    assert [plan(ours, deepseek, version=v).reach for v in ("0.20", "1.0")] == ["node", "fabric"]
    found = [plan("vllm", deepseek, version=v).reach for v in ("0.18.0", "0.19.0")]
    assert found == ["node", "fabric"]
    assert plan("vllm", "llama3-70b", "TPUv6e", version="0.11.0").reach == "fabric"


def test_states_of_delta_rules_are_in_the_model_s_type_with_vllm_unless_its_checkpoint_says():
    def states(engine, model):
        given = {"model": model, "system": None, "accelerator": "H200-SXM-141GB", "tp": 4}
        return assumed(framework=engine, **given)[0].states

    assert states("vllm", "qwen3-next-80b-a3b") == "half"
    assert states("vllm", "qwen3.5-397b-a17b") == "whole"
    assert states("sglang", "qwen3-next-80b-a3b") == "whole"


def test_rocm_s_decoding_shares_keys_from_its_own_kernel_on():
    fields = {"framework": "vllm-rocm", "accelerator": "MI300X-192GB", "system": None}
    found = [assumed(**{**fields, "version": v})[0].headwise for v in ("0.6.1", "0.6.2")]
    assert found == ["all", "none"]


def test_rocm_s_decoding_splits_keys_for_few_heads_before_that():
    """As long as the model holds: 4,096 tokens, or 8,192 and more."""
    fields = {"framework": "vllm-rocm", "accelerator": "MI300X-192GB", "system": None}
    cases = (("llama2-7b", "0.6.1"), ("llama3-8b", "0.6.1"), ("llama3-8b", "0.6.2"))
    found = [assumed(**{**fields, "model": m, "version": v})[0].splitting for m, v in cases]
    assert found == ["few", "few_8k", "keys"]
    assert assumed(framework="vllm", version="0.6.1")[0].splitting == "keys"


def test_rocm_s_products_of_few_rows_before_its_tuned_builds():
    fields = {"framework": "vllm-rocm", "system": None}
    cases = (("MI300X-192GB", "0.6.1"), ("MI250X-128GB", "0.6.1"), ("MI300X-192GB", "0.6.6"))
    found = [assumed(**{**fields, "accelerator": a, "version": v})[0].matvec for a, v in cases]
    assert found == ["tiled", "untuned", "gemm"]


def test_sglang_s_clients_hang_on_one_process_but_for_those_of_mixtures():
    assert assumed(framework="sglang", version="0.5.9")[0].front_end == "single"
    shared = {"model": "deepseek-v3", "system": None, "accelerator": "H200-SXM-141GB"}
    found = assumed(framework="sglang", **shared, tp=1, dp=8, gpus=8, batch=8)[0]
    assert found.front_end == "beside"


def test_one_process_answers_tensorrt_llm_s_clients_since_its_own_server():
    fronts = [assumed(framework="tensorrt-llm", version=v)[0].front_end for v in ("0.20", "1.0")]
    assert fronts == ["beside", "whole"]


def test_rocm_s_products_on_mi300x_before_its_tuned_builds():
    fields = {"framework": "vllm-rocm", "accelerator": "MI300X-192GB", "system": None}
    cases = (("0.6.1", "fp16"), ("0.6.1", "fp8"), ("0.6.6", "fp16"))
    found = [assumed(**{**fields, "version": v, "precision": p})[0] for v, p in cases]
    assert [one.product_units for one in found] == ["vector", "matrix", "matrix"]
    older = assumed(**{**fields, "accelerator": "MI250X-128GB", "version": "0.6.1"})[0]
    assert older.product_units == "matrix"


def test_tensorrt_llm_s_heads_one_by_one_by_release_and_cache():
    """All heads to 0.7; to 0.10 groups other than eight where caches have 8 bits, larger ones and
    single heads where they have 16; single heads after."""
    known = {
        (version, precision): assumed(
            framework="tensorrt-llm", version=version, precision=precision
        )[0].headwise
        for version in ("0.5", "0.10", "0.15")
        for precision in ("fp16", "fp8")
    }
    assert list(known.values()) == ["all", "all", "to8", "but8", "single", "single"]


def test_gpt_fast_adds_up_inside_a_node_with_kernels_of_its_own():
    sums = [assumed(framework="gpt-fast", era=era)[0].allreduce for era in ("2023-12", "2024-09")]
    assert sums == ["nccl", "custom"]


def test_fastertransformer_s_prompts_send_scores_through_memory():
    """The longer the prompt, the more of its time they are."""
    base = {"framework": "fastertransformer", "batch": 8, "tp": 1}
    assert assumed(**base)[0].fusion == "unfused"

    def rate(length, **more):
        fields = {**base, "input_len": length, "output_len": 1, "gpus": 1, **more}
        return float(predict_infer("gpt3-6.7b", "dgx-a100", fields).requests_per_s)

    longer = [rate(n, fusion="fused") / rate(n) for n in (128, 1500)]
    assert 1.0 < longer[0] < longer[1]


def test_every_fact_is_of_a_field_and_asks_what_can_be_asked():
    for engine in all_engines().values():
        months = list(engine.releases.values())
        assert months == sorted(months), engine.name
        numbers = [version_of(name) for name in engine.releases]
        assert numbers == sorted(numbers), engine.name
        for fact in engine.facts:
            assert fact.field in SERVING_FIELDS, (engine.name, fact)
            assert set(fact.where) <= set(CONDITIONS)


def test_later_releases_never_lose_a_field():
    """What an engine says of a field it says of every later release: facts only replace others."""
    where = catalog.Setting(catalog.accelerator("H100-SXM5-80GB"), catalog.model("llama3-8b"))
    for engine in all_engines().values():
        known: set[str] = set()
        for version in engine.releases:
            fields = {one.field for one in engine.defaults(where, None, version)}
            assert known <= fields, (engine.name, version)
            known = fields


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"framework": "vllm", "version": "newest"}, "begins with no number"),
        ({"framework": "llama.cpp", "version": "3"}, "no releases of llama.cpp are known"),
        ({"framework": "vllm", "era": "lately"}, "is not a date"),
    ],
)
def test_bad_releases_are_one_line(fields, told):
    with pytest.raises(InputError, match=told):
        assumed(**fields)


def test_an_unknown_engine_is_refused():
    with pytest.raises(InputError, match="unknown framework"):
        engine_named("vlm")


def test_a_window_that_an_engine_does_not_set_costs_what_attention_to_all_costs():
    """Mistral 7B has Llama 3's attention and a window of 4,096. TensorRT-LLM's engines see all that
    is cached: prompts of 20,000 tokens cost what they cost of the same model without a window, and
    more than its later backend, which stops at the window, and its cache holds no more of them."""
    fields = {"gpus": 1, "tp": 1, "saturated": True, "input_len": 20_000, "output_len": 2000,
              "framework": "tensorrt-llm"}  # fmt: skip

    def rate(model, **given):
        found = predict_infer(model, "dgx-h100", {**fields, **given})
        return found.requests_per_s, found.running

    old, new = rate("mistral-7b", version="0.15"), rate("mistral-7b", version="1.1")
    whole = rate("mistral-7b-v0.3", version="0.15")
    assert old == pytest.approx(whole, rel=0.02)
    assert old[0] < 0.8 * new[0]
    assert old == rate("mistral-7b", version="0.15", windows="unset")
    assert new == rate("mistral-7b", version="1.1", windows="model")
    with pytest.raises(InputError, match="heads of their own"):
        predict_infer("gemma-4-31b", "dgx-h100", {**fields, "windows": "unset"})


def at(accelerator="H100-SXM5-80GB", model="llama3-8b", **more):
    return catalog.Setting(catalog.accelerator(accelerator), catalog.model(model), **more)


HELD = {
    "memory_from": (80, at(), at("L40S-48GB")),
    "memory_below": (80, at("L40S-48GB"), at()),
    "accelerators": (["H100"], at(), at("L40S-48GB")),
    "other_than": (["H100"], at("L40S-48GB"), at()),
    "architectures": (["hopper"], at(), at("L40S-48GB")),
    "vendor": ("nvidia", at(), at("MI300X-192GB")),
    "multiplies": ("fp8", at(), at("A100-SXM4-80GB")),
    "weights": (["fp8"], at(weights="fp8"), at()),
    "context_above": (8192, at(model="llama3.1-8b"), at()),
    "models": (["mixture"], at(model="mixtral-8x7b"), at()),
    "families": (["mixtral"], at(model="mixtral-8x7b"), at()),
    "tp_from": (2, at(tp=2), at(tp=1)),
    "tp_below": (2, at(tp=1), at(tp=2)),
    "dp_from": (2, at(dp=2), at(dp=1)),
    "replicas": (True, at(dp=2), at(dp=1)),
    "guesses": (True, at(drafted=1), at(drafted=0)),
}
"""Of each condition a value, a setting of which it holds, and one of which it does not: those next
to the bound, and what is not stated is one rank that guesses nothing."""


@pytest.mark.parametrize("name", sorted(CONDITIONS))
def test_a_condition_holds_where_it_is_met_alone(name):
    value, met, unmet = HELD[name]
    assert CONDITIONS[name](value, met)
    assert not CONDITIONS[name](value, unmet)
    if isinstance(value, bool):
        assert CONDITIONS[name](not value, unmet)
        assert not CONDITIONS[name](not value, met)


def test_what_is_not_stated_of_a_plan_is_one_rank_that_guesses_nothing():
    assert (at().tp, at().dp, at().drafted, at().weights) == (1, 1, 0, "bf16")
    for kind, name in (("dense", "llama3-8b"), ("separate", "llama3-8b"), ("latent", "deepseek-v3"),
                       ("sparse", "deepseek-v3.2")):  # fmt: skip
        assert CONDITIONS["models"]([kind], at(model=name)), kind


def test_llamacpp_multiplies_integers_where_there_are_such_units():
    """mul_mat_q by default since June of 2024, not on V100, nor of weights in 16 bits; prompts are
    read no slower than before."""

    def asked(accelerator, **fields):
        fields = {"tp": 1, "batch": 1, "framework": "llama.cpp", "system": None, **fields}
        return assumed(accelerator=accelerator, **fields)[0].fusion

    assert asked("RTX-4090-24GB") == asked("P40-24GB") == "integers"
    for accelerator, fields in (
        ("RTX-4090-24GB", {"era": "2024-05"}), ("RTX-4090-24GB", {"precision": "fp16"}),
        ("V100-SXM2-32GB", {}), ("RX-7900XTX-24GB", {}),
    ):  # fmt: skip
        assert asked(accelerator, **fields) == "converted", (accelerator, fields)
    for tokens in (40, 100, 200, 512, 1000):
        stated = {"framework": "llama.cpp", "input_len": tokens, "output_len": 2, "tp": 1}
        then, now = (
            predict_infer("llama3-8b", "RTX-3090-24GB", {**stated, "era": era}).to_dict()["ttft_s"]
            for era in ("2024-05", "2024-07")
        )
        assert now["value"] <= 1.001 * then["value"], tokens


def test_narrow_weights_stream_in_trtllm_too():
    """4-bit weights of Ada took 1.3 times as long as those of 8 bits."""
    times = [
        predict_infer(
            "llama3-8b", "L40S-48GB",
            {"framework": "tensorrt-llm", "precision": one, "input_len": 100, "output_len": 9},
        ).to_dict()["tpot_s"]["value"]
        for one in ("int4_wo", "int8_wo", "bf16")
    ]  # fmt: skip
    assert times[0] < 0.75 * times[1]
    assert times[1] < 0.75 * times[2]
