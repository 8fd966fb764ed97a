"""Columns of inference tables that say what plans accept."""

from __future__ import annotations

import numpy as np
import pytest

from calibration.tables.requests import InferencePoint, inference_point
from calibration.tables.runs import Skipped
from calibration.tables.scripts import script_settings
from predictor.catalog import load
from predictor.memory import serving_memory
from predictor.serving import predict_inference
from predictor.timing import RunParameters

KNOWN = load("default")

ROW = {
    "point_id": "a", "source": "s", "accelerator": "H100-SXM5-80GB", "gpus_per_node": 8,
    "num_gpus": 8, "model": "deepseek-r1", "weights_precision": "fp8", "tp": 8,
    "concurrency": 64, "input_len": 1000, "output_len": 500, "framework": "sglang",
    "metric": "output_tokens_per_s", "value": 1000.0, "published": "2026-02",
}  # fmt: skip


def point(**more) -> InferencePoint:
    found = inference_point({**ROW, **more}, RunParameters())
    assert not isinstance(found, Skipped), found
    return found


@pytest.mark.parametrize(
    ("column", "value", "field", "expected"),
    [
        ("chunk", 4096, "chunk", 4096),
        ("max_batch", 48, "max_batch", 48),
        ("cached", 0.5, "cached", 0.5),
        ("scheduling", "serial", "scheduling", "serial"),
        ("cuda_graphs", "no", "execution", "eager"),
        ("cuda_graphs", 1, "execution", "graph"),
        ("speculative", 3, "drafted", 3),
        ("polling", 30, "polling", 30),
    ],
)
def test_columns_are_fields(column, value, field, expected):
    assert getattr(point(**{column: value}).request.plan, field) == expected


def test_lengths_vary_as_a_column_says():
    assert point(variation=0.0).request.variation == 0.0


def test_attention_replicas():
    plan = point(dp_attention="yes").request.plan
    assert (plan.tp, plan.dp, plan.ep, plan.gpus) == (1, 8, 8, 8)


@pytest.mark.parametrize(
    ("stated", "tp", "dp"),
    [({"dp": 8}, 1, 8), ({"dp": 4}, 2, 4), ({"dp": 8, "dp_attention": 1}, 1, 8),
     ({"tp": 2, "dp": 4}, 2, 4), ({"model": "llama3-70b", "dp": 8}, 8, 1)],
)  # fmt: skip
def test_replicas_among_all_ranks_of_a_stage(stated, tp, dp):
    """`--tp 8 --dp 8` on eight accelerators is attention in eight replicas, of a mixture."""
    plan = point(accelerator="H200-SXM-141GB", **stated).request.plan
    assert (plan.tp, plan.dp, plan.gpus) == (tp, dp, 8)


def test_readers_apart_leave_a_decoder_its_ranks():
    plan = point(prefill_workers=2, prefill_tp=8, workers=1, dp=8, ep=8, num_gpus=24).request.plan
    assert (plan.tp, plan.dp, plan.ep) == (1, 8, 8)


@pytest.mark.parametrize(
    ("accelerator", "chips", "ranks"),
    [("Trainium2-96GB", 16, 64), ("trn2", 16, 128), ("Inferentia2-32GB", 12, 24), ("TPU7x", 4, 8)],
)
def test_ranks_may_be_cores_of_the_accelerators_that_a_row_counts(accelerator, chips, ranks):
    stated = {"model": "llama3-70b", "weights_precision": "bf16", "framework": "neuronx",
              "gpus_per_node": chips, "batch": 1, "concurrency": None}  # fmt: skip
    plan = point(accelerator=accelerator, num_gpus=chips, tp=ranks, **stated).request.plan
    assert (plan.tp, plan.gpus) == (chips, chips)


def test_a_cache_is_read_in_the_words_of_tables():
    for said, kv in (("auto", "bf16"), ("FP8 (E4M3)", "fp8"), ("int4", "int4")):
        assert point(kv_precision=said, framework="vllm").request.plan.kv == kv
    found = inference_point({**ROW, "kv_precision": "strange"}, RunParameters())
    assert isinstance(found, Skipped)
    assert "kv_precision" in found.reason


def test_clients_of_lmdeploy_are_clients_unless_a_batch_stands_beside_them():
    assert point(framework="lmdeploy").kind == "serving"
    assert point(framework="lmdeploy").request.plan.batch == 64
    assert point(framework="lmdeploy", batch=64).kind == "static"


def test_an_accelerator_without_a_form_is_the_catalogs_but_in_a_source_that_names_one():
    stated = {"accelerator": "A100", "model": "llama2-70b", "weights_precision": "fp16"}
    names = [point(source=source, **stated).request.cluster.accelerator.name
             for source in ("elsewhere", "mlc_llm_perf_bench")]  # fmt: skip
    assert names == ["A100-SXM4-80GB", "A100-PCIe-80GB"]


def test_prompts_read_apart_are_one_decoder_and_its_share_of_readers():
    """Three readers of 4 and two decoders of 8 with attention replicas: 28 accelerators. One
    decoder has 8 + 1.5 x 4 = 14, half of the clients and half of the tokens."""
    columns = {"prefill_workers": 3, "prefill_tp": 4, "prefill_dp": 1, "workers": 2, "tp": 1,
               "dp": 8, "ep": 8, "num_gpus": 28}  # fmt: skip
    found = point(**columns)
    plan = found.request.plan
    assert (plan.prefill_workers, plan.prefill_tp, plan.dp, plan.ep) == (1.5, 4, 8, 8)
    assert (plan.gpus, plan.batch, found.kind) == (14, 32, "serving")
    assert found.value == 500.0
    assert point(**columns, metric="output_tokens_per_s_per_gpu").value == 14 * 1000.0
    assert point(**columns, metric="tpot_ms").value == 1.0


def test_settings_of_scripts_are_those_of_their_rows():
    row = {"accelerator": "B200-SXM-180GB", "model": "deepseek-r1", "weights_precision": "nvfp4",
           "tp": 8, "input_len": 900.0, "published": "2026-02"}  # fmt: skip
    source = "aiconfigurator_silicon_inferencemax"

    def polling(framework="sglang", **more):
        return script_settings({**row, **more}, framework, source).get("polling")

    assert polling(concurrency=8.0) == 10
    assert polling(concurrency=16.0) == 30
    assert polling(concurrency=16.0, accelerator="H200-SXM-141GB") is None
    assert polling("vllm", concurrency=16.0) is None
    assert script_settings(row, "sglang", "elsewhere") == {}

    def budget(length, published):
        one = {**row, "concurrency": 16.0, "input_len": length, "published": published}
        return script_settings(one, "tensorrt-llm", source)["chunk"]

    # Of the longest prompts, which are a ninth longer than the mean; 8,192 at least since 2026.
    assert budget(900.0, "2025-11") == 16 + 1000 + 64
    assert budget(900.0, "2026-02") == 8192
    assert budget(9000.0, "2026-02") == 16 + 10000 + 64


@pytest.mark.parametrize(
    ("changes", "polling"),
    [
        ({}, 40),
        ({"concurrency": 32.0}, None),
        ({"concurrency": 256.0}, None),
        ({"input_len": 7372.5}, None),
        ({"output_len": 7372.5}, None),
        ({"weights_precision": "nvfp4"}, None),
        ({"published": "2025-11"}, None),
    ],
)
def test_batches_wait_where_a_script_delays_them(changes, polling):
    """dsr1_fp8_b200_trt.sh: as long prompts as answers, of 64 to 255 clients."""
    row = {"accelerator": "B200-SXM-180GB", "model": "deepseek-r1", "weights_precision": "fp8",
           "tp": 8, "input_len": 921.5, "output_len": 921.5, "concurrency": 64.0,
           "published": "2026-02"}  # fmt: skip
    source = "aiconfigurator_silicon_inferencemax"
    assert script_settings({**row, **changes}, "tensorrt-llm", source).get("polling") == polling


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        # Prompts wait until each replica has one, or for sixty passes.
        ({"dp": 8, "tp": 1}, {"polling": 60}),
        ({"version": "1.2.0rc6.post3"}, {"drafted": 3, "polling": 1, "chunk": 64 + 1024 + 64}),
        ({"version": "1.2.0rc6.post3", "dp": 8, "tp": 1}, {"drafted": 1, "polling": 60}),
        ({"concurrency": 128.0}, {"prompt_graphs": 8192}),
        ({"concurrency": 8.0, "input_len": 7372.5}, {"chunk": 8264}),
    ],
)
def test_settings_of_tensorrt_llm_follow_layout_and_image(changes, said):
    row = {"accelerator": "B200-SXM-180GB", "model": "deepseek-r1", "weights_precision": "fp8",
           "tp": 8, "dp": 1, "input_len": 921.5, "output_len": 921.5, "concurrency": 64.0,
           "published": "2026-02"}  # fmt: skip
    own = {"framework_version": changes.get("version", "1.2.0rc6.post2"), **row, **changes}
    found = script_settings(own, "tensorrt-llm", "aiconfigurator_silicon_inferencemax")
    assert said.items() <= found.items()
    assert ("drafted" in found) == ("drafted" in said)


def test_runs_that_only_guess_are_told_by_their_layout():
    """nvidia-master.yaml: SGLang on B200 without guesses to 64 clients of 1,024 tokens, of 8,192
    to four; Qwen3.5 without guesses divides experts where it has four ranks."""
    row = {"accelerator": "B200-SXM-180GB", "model": "deepseek-r1", "weights_precision": "fp8",
           "tp": 8, "ep": 1, "input_len": 921.5, "concurrency": 64.0, "published": "2026-03",
           "framework_version": "0.5.9"}  # fmt: skip

    def drafted(**changes):
        source = "aiconfigurator_silicon_inferencemax"
        return script_settings({**row, **changes}, "sglang", source).get("drafted", 0)

    assert (drafted(), drafted(concurrency=128.0), drafted(input_len=7372.5)) == (0, 2, 2)
    assert drafted(input_len=7372.5, concurrency=4.0) == 0
    qwen = {"model": "qwen3.5-397b-a17b", "tp": 4}
    assert (drafted(**qwen), drafted(**qwen, ep=4), drafted(**{**qwen, "tp": 8})) == (3, 0, 0)


def test_graphs_and_budgets_of_vllm_by_the_month_of_its_script():
    row = {"accelerator": "B200-SXM-180GB", "model": "minimax-m2.5", "weights_precision": "fp8",
           "tp": 4, "input_len": 921.5, "concurrency": 64.0}  # fmt: skip
    source = "aiconfigurator_silicon_inferencemax"
    before, after = (
        script_settings({**row, "published": month}, "vllm", source)
        for month in ("2026-03", "2026-04")
    )
    assert {"prompt_graphs", "chunk", "kv_precision"}.isdisjoint(before)
    told = {"prompt_graphs": 2048, "graph_limit": 2048, "chunk": 2048, "kv_precision": "fp8"}
    assert told.items() <= after.items()


def test_dstack_read_whole_prompts_and_launched_one_by_one_on_amd_alone():
    rows = {name: {"accelerator": name} for name in ("H100-SXM5-80GB", "MI300X-192GB")}
    told = {
        name: script_settings(row, "vllm", "dstack_405b_h100_mi300x") for name, row in rows.items()
    }
    assert {one["chunk"] for one in told.values()} == {91680}
    assert told["MI300X-192GB"]["execution"] == "eager"
    assert "execution" not in told["H100-SXM5-80GB"]


@pytest.mark.parametrize(
    ("model", "tp", "entries", "batch"),
    [
        ("llama2-7b", 1, 1000, 128),
        ("llama2-13b", 1, 500, 128),
        ("internlm-20b", 2, 700, 128),
        ("llama2-70b", 4, 4000, 256),
    ],
)
def test_lmdeploy_s_benchmark_had_room_for_as_many_blocks_as_its_scripts_set(
    model, tp, entries, batch
):
    """Blocks of 128 tokens: what shares of the free memory hold is that many to 2 %."""
    found = script_settings({"model": model}, "lmdeploy", "lmdeploy_a100_fp16")
    made = point(
        source="lmdeploy_a100_fp16", framework="lmdeploy", framework_version="0.1.0a1",
        published="2023-12", accelerator="A100-SXM4-80GB", model=model, weights_precision="fp16",
        tp=tp, num_gpus=tp, input_len=2048, output_len=2048, batch=64, concurrency=None,
        metric="tpot_ms",
    )  # fmt: skip
    plan = made.request.plan
    assert (plan.memory_fraction, plan.max_batch) == (found["memory_fraction"], batch)
    memory = serving_memory(made.request.model, made.request.cluster, plan, RunParameters())
    tokens = float(memory.sequences) * 4096
    assert tokens == pytest.approx(128 * entries, rel=0.05)
    assert tokens <= 128 * entries * 1.02


def test_ray_serve_s_examples_send_five_prompts_a_client():
    found = script_settings({}, "vllm", "anyscale_ray_serve_gptoss")
    assert found == {"variation": 0.0, "rounds": 5}


def test_ml_energy_chose_experts_of_deepseek_on_b200_by_an_environment_switch():
    def experts(model, accelerator):
        row = {"accelerator": accelerator, "model": model}
        return script_settings(row, "vllm", "ml_energy_v3").get("narrow_experts")

    assert experts("deepseek-v3.1", "B200-SXM-180GB") == "own"
    assert experts("qwen3-235b-a22b", "B200-SXM-180GB") is None
    assert experts("deepseek-r1", "H200-SXM-141GB") is None


def test_a_client_of_few_prompts_finds_them_cached():
    """aiperf's hundred prompts, 2 C requests to warm up and 20 C that count: of 16 clients 32
    prompts are known and 68 of 320 are new; from 50 clients on none is. Of 4,000 tokens the last
    block of 16 is read again."""
    source = "aiconfigurator_silicon_inhouse"

    def cached(clients, framework="vllm"):
        row = {"concurrency": clients, "input_len": 4000.0}
        return script_settings(row, framework, source).get("cached")

    assert cached(16.0) == pytest.approx((1 - 68 / 320) * 3984 / 4000)
    assert cached(50.0) == cached(128.0) == pytest.approx(3984 / 4000)
    assert cached(50.0, "tensorrt-llm") is None
    assert script_settings({"input_len": 4000.0}, "vllm", source).get("cached") is None


def test_prompts_ride_along_where_a_script_says_so():
    """AIConfigurator's generator passes --enable-mixed-chunk to SGLang."""
    source = "aiconfigurator_silicon_inhouse"
    assert script_settings({"input_len": 4000.0}, "sglang", source)["batching"] == "mixed"
    assert "batching" not in script_settings({"input_len": 4000.0}, "vllm", source)


def test_an_engine_made_for_its_clients_lacks_the_slot_that_pads_its_batches():
    """One of 16, as long as that release; never the last one."""
    source = "aiconfigurator_silicon_inhouse"

    def room(clients, framework="tensorrt-llm", version="1.0.0rc3"):
        row = {"concurrency": clients, "input_len": 4000.0, "framework_version": version}
        return script_settings(row, framework, source).get("max_batch")

    assert room(16.0) == 15
    assert room(1.0) == 1
    assert room(16.0, version="1.3.0rc5") is None
    assert room(16.0, "vllm") is None


def test_cards_of_two_dies_are_counted_as_two():
    """Two cards of MI250: tensor parallel over four dies."""
    row = {"accelerator": "MI250", "num_gpus": 2, "gpus_per_node": 4, "tp": 2, "concurrency": None,
           "model": "llama2-70b", "weights_precision": "fp16", "framework": "vllm", "batch": 8,
           "metric": "e2e_latency_s"}  # fmt: skip
    request = point(**row).request
    assert (request.plan.tp, request.plan.dp, request.plan.gpus) == (4, 1, 4)
    assert request.cluster.accelerator.memory == 64 * 2**30
    assert request.cluster.tiers[0].size == 8


def test_replicas_of_a_static_batch_get_a_batch_each_and_metas_fp8_leaves_attention_wide():
    row = {"concurrency": None, "batch": 16, "model": "llama3.1-405b", "num_gpus": 8, "tp": 4,
           "accelerator": "MI300X-192GB", "weights_precision": "fp8", "framework": "vllm",
           "metric": "e2e_latency_s", "dp": 2}  # fmt: skip
    two = point(**row, notes='gpu label "2FP8-amd" (AMD-Quark FP8 checkpoint; 2 replica(s))')
    assert (two.request.plan.batch, two.request.plan.dp) == (32, 2)
    meta = point(**row, notes="(Meta FP8 checkpoint; 1 replica(s))").request.plan
    assert (meta.projections, meta.feed_forward, meta.batch) == ("bf16", "fp8", 16)
    own = two.request.plan
    assert (own.projections, own.feed_forward) == ("fp8", "fp8")


def test_conversations_that_a_row_names_have_their_mean_lengths():
    notes = "ShareGPT request throughput, 3000 prompts, max batch as stated"
    row = {"input_len": None, "output_len": None, "framework": "lmdeploy", "batch": 192,
           "concurrency": 192, "notes": notes, "metric": "requests_per_s"}  # fmt: skip
    found = point(**row)
    plan = found.request.plan
    assert (plan.input_len, plan.output_len, plan.max_batch) == (247, 233, 192)
    assert (found.kind, plan.serving) == ("serving", 1.0)
    told = inference_point({**ROW, **row, "notes": ""}, RunParameters())
    assert isinstance(told, Skipped)
    assert "lengths" in told.reason


@pytest.mark.parametrize(
    ("framework", "accelerator", "kind", "batch"),
    [
        ("huggingface", "H100-SXM5-80GB", "static", 1),
        ("optimum-habana", "Gaudi2-96GB", "static", 1),
        ("vllm", "H100-SXM5-80GB", "saturated", None), ("tgi", "H100-SXM5-80GB", "saturated", None),
    ],
)  # fmt: skip
def test_nobody_says_how_many(framework: str, accelerator: str, kind: str, batch: int | None):
    """A script's batch is of one sequence; an engine that takes in what comes is full."""
    found = point(
        framework=framework, accelerator=accelerator, concurrency=None, model="llama3-8b",
        weights_precision="bf16", tp=1, num_gpus=1,
    )  # fmt: skip
    assert found.kind == kind
    assert batch is None or found.request.plan.batch == batch


def test_devices_without_a_layout_are_a_layout_that_is_left_open():
    found = point(tp=None, concurrency=None)
    assert found.kind == "saturated"
    plan = found.request.plan
    assert float(plan.tp * plan.pp * plan.dp) == 8
    for stated, laid in (
        ({"pp": 1}, (8, 1, 1)), ({"pp": 2}, (4, 2, 1)), ({"dp": 2}, (4, 1, 2)),
        ({"pp": 1, "dp": 1}, (8, 1, 1)), ({"pp": 2, "dp": 2}, (2, 2, 2)),
    ):  # fmt: skip
        plan = point(
            tp=None, concurrency=None, batch=16, metric="e2e_latency_s", **stated
        ).request.plan
        assert (plan.tp, plan.pp, plan.dp) == laid
    bare = inference_point(
        {**ROW, "tp": None, "concurrency": None, "num_gpus": None}, RunParameters()
    )
    assert isinstance(bare, Skipped)


@pytest.mark.parametrize(
    ("published", "version", "era"),
    [
        ("2023-12", None, "2023-11"),
        ("2024-01", None, "2023-12"),
        ("2023-12", "acbed3ef4 (2023-12-06)", "2023-12"),
        ("2026-02", "nightly 2026-02", "2026-02"),
    ],
)
def test_what_was_run_is_older_than_its_page(published, version, era):
    """Unless something is said of the software, it is that of the month before."""
    found = point(framework="vllm", published=published, framework_version=version)
    assert found.request.plan.era == era


def test_a_page_of_the_month_of_vllm_s_first_graphs_was_run_without():
    def plan(published):
        return point(framework="vllm", published=published).request.plan

    runs = [plan(published).execution for published in ("2023-12", "2024-01")]
    assert runs == ["eager", "graph"]


def test_first_tokens_come_no_later_where_fewer_clients_than_replicas_send():
    """Nobody waits for another where each has a replica of the attention to itself."""
    made = [point(accelerator="H200-SXM-141GB", tp=1, dp=8, concurrency=clients).request
            for clients in (1, 2, 8)]  # fmt: skip
    first = [
        float(np.max(predict_inference(one.model, one.cluster, one.plan, KNOWN).latencies.ttft))
        for one in made
    ]
    assert first == pytest.approx([first[-1]] * 3, rel=0.02)


def test_a_release_of_an_engine_that_is_not_named_is_nobodys():
    """Scripts of a source know its engine's release, which a row without the engine has not."""
    stated = {"source": "dstack_405b_h100_mi300x", "accelerator": "MI300X-192GB", "tp": 8,
              "model": "llama3.1-405b", "batch": 8, "concurrency": None}  # fmt: skip
    assert point(**stated, framework=None).request.plan.framework == "neutral"


def test_sources_that_count_decoding_of_one_sequence_need_not_say_so():
    stated = {"source": "mlc_llm_perf_bench", "accelerator": "RTX-4090-24GB", "num_gpus": 1,
              "model": "llama2-7b", "tp": 1, "concurrency": None, "weights_precision": "int4",
              "value": 100.0}  # fmt: skip
    assert point(**stated).value == 0.01


@pytest.mark.parametrize(
    ("metric", "value", "name", "expected"),
    [("itl_ms", 20.0, "tpot_s", 0.02), ("TPOT_ms", 20.0, "tpot_s", 0.02),
     ("e2e_latency_ms", 1500.0, "e2e_s", 1.5), ("requests_per_min", 90.0, "requests_per_s", 1.5),
     ("tokens/s/user", 50.0, "tpot_s", 0.02),
     ("total_tokens_per_s_per_gpu", 300.0, "output_tokens_per_s", 8 * 300.0 * 500 / 1500)],
)  # fmt: skip
def test_what_is_measured_has_other_names_and_units(metric, value, name, expected):
    found = point(accelerator="H200-SXM-141GB", metric=metric, value=value)
    assert (found.metric, found.value) == (name, pytest.approx(expected))


@pytest.mark.parametrize("told", ["V0.8.5", "v0.8.5", "(0.8.5)", "0.8.5.post1"])
def test_a_release_is_read_however_it_is_written(told):
    assert point(framework="vllm", framework_version=told).request.plan.era == "2025-04"


@pytest.mark.parametrize(
    ("stated", "told"),
    [
        ({"num_gpus": 8, "tp": 3}, "num_gpus 8 is not tp 3 x pp 1: the ranks count, 3"),
        ({"num_gpus": 8, "tp": 2, "dp": 2}, "num_gpus 8 is not tp 2 x pp 1 x dp 2: it counts"),
        ({"num_gpus": 8, "tp": 2, "dp": 4}, ""),
        ({"num_gpus": 8, "tp": 2}, ""),
        ({"num_gpus": 8, "tp": None}, ""),
    ],
)
def test_accelerators_that_are_not_the_product_of_ranks_are_told(stated, told) -> None:
    found = point(**{"pp": 1, "dp": None, **stated})
    assert found.note.startswith(told)
    assert bool(found.note) == bool(told)
