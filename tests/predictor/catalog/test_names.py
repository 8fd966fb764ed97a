"""Names as people, repositories, recipes, schedulers and drivers write them."""

from __future__ import annotations

import pytest

from predictor import catalog
from predictor.catalog.entries import to_mapping
from predictor.catalog.machine_names import instances
from predictor.errors import InputError, nearest

MODELS = {
    "meta-llama/Llama-3.1-70B-Instruct": ("llama3.1-70b", ""),
    "LLAMA3_1_70B": ("llama3.1-70b", ""),
    "Meta-Llama-3-70B-Instruct": ("llama3-70b", ""),
    "Qwen3-235B-A22B-FP8": ("qwen3-235b-a22b", "fp8"),
    "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8": ("qwen3-235b-a22b", "fp8_block"),
    "DeepSeek-R1-0528": ("deepseek-r1", "fp8_block"),
    "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B": ("qwen3-8b", ""),
    "unsloth/DeepSeek-R1-BF16": ("deepseek-r1", ""),
    "nvidia/DeepSeek-R1-NVFP4": ("deepseek-r1", "nvfp4"),
    "Llama-4-Scout-17B-16E-Instruct": ("llama4-scout-17b-16e", ""),
    "TheBloke/Llama-2-70B-Chat-AWQ": ("llama2-70b", "int4_wo"),
    "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8": ("qwen2.5-7b", "int8_wo"),
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8": ("llama3.1-8b", "sq"),
    "openai/gpt-oss-120b": ("gpt-oss-120b", "w4a16_mxfp4"),
    "Qwen/Qwen3-VL-235B-A22B-Thinking": ("qwen3-235b-a22b", ""),
    "/models/Qwen3-30B-A3B-Thinking-2507": ("qwen3-30b-a3b", ""),
    "mistralai/Mixtral-8x7B-Instruct-v0.1": ("mixtral-8x7b", ""),
    "nemotron3-ultra": ("nemotron-3-ultra-550b-a55b", ""),
    "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4": ("nemotron-3-ultra-550b-a55b", "nvfp4"),
    "nemotron3.5-lightning": ("nemotron-3.5-lightning-30b-a3b", ""),
    "moonshotai/Kimi-K2.6": ("kimi-k2", "int4_wo"),
    "Qwen/Qwen3.6-35B-A3B-FP8": ("qwen3.5-35b-a3b", "fp8_block"),
    "deepseek-r1:671b": ("deepseek-r1", "fp8_block"),
    "deepseek-r1:70b": ("llama3.3-70b", ""),
    "qwen3:30b": ("qwen3-30b-a3b", ""),
    "Qwen/Qwen3-VL-30B-A3B-Instruct": ("qwen3-30b-a3b", ""),
    "mistralai/Ministral-3-14B-Instruct-2512": ("ministral-3-14b", ""),
    "DeepSeek-R1-0528 (FP8)": ("deepseek-r1", "fp8"),
    "GPT-3 (175B)": ("gpt3-175b", ""),
    "Llama 3.1 70B, INT4 AWQ": ("llama3.1-70b", "int4_wo"),
    "Qwen3-Next-80B": ("qwen3-next-80b-a3b", ""),
    "Qwen3.6-35B-FP8": ("qwen3.5-35b-a3b", "fp8"),
    "Qwen3.8 2.4T": ("qwen3.8-2.4t-a95b", ""),
    "Megatron-Turing NLG": ("mt-nlg-530b", ""),
    "Command R+": ("command-r-plus-104b", ""),
    "amd/Llama-3.1-405B-Instruct-FP8-KV": ("llama3.1-405b", "fp8"),
    "amd/DeepSeek-R1-MXFP4-ASQ": ("deepseek-r1", "w4a16_mxfp4"),
    "nvidia/DeepSeek-R1-0528-FP4-v2": ("deepseek-r1", "nvfp4"),
    "mistralai/Codestral-22B-v0.1": ("mistral-small-22b", ""),
    "microsoft/Phi-3-mini-128k-instruct": ("phi-3-mini", ""),
    "Yi-34B-200K": ("yi-34b", ""),
}


@pytest.mark.parametrize("written", MODELS)
def test_a_name_is_taken_for_a_catalog_model_and_says_how_its_weights_are_stored(
    written: str,
) -> None:
    row, stored = MODELS[written]
    found = catalog.read_model_name(written)
    assert found is not None
    assert (found.row, found.stored) == (row, stored)
    assert written in found.rule
    assert row in found.rule
    model = catalog.model(written)
    assert model.name == row
    assert (model.quantization.precision if model.quantization else "") == stored


@pytest.mark.parametrize("name", ["k2", "glm", "ring", "mixtral-8x7b-a99b", "mistral"])
def test_the_beginning_of_a_name_is_no_name_without_its_size(name: str) -> None:
    assert catalog.read_model_name(name) is None


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("opt-67b", None),
        ("pythia-14b", None),
        ("gpt2-15b", None),
        ("deepseek-67b", "deepseek-llm-67b"),
        ("opt-6_7b", "opt-6.7b"),
        ("Qwen2.5-0-5B", "qwen2.5-0.5b"),
        ("qwen25_05b", "qwen2.5-0.5b"),
        ("llama3_2_1b", "llama3.2-1b"),
    ],
)
def test_the_point_of_a_size_counts(name: str, row: str | None) -> None:
    """Nobody's 67b is another's 6.7b; who leaves the point out writes something in its stead."""
    found = catalog.read_model_name(name)
    assert (found.row if found else None) == row


def test_case_dashes_and_organisation_do_not_count() -> None:
    for row, content in catalog.rows("models").items():
        for name in (row, row.upper(), f"org/{row}", f"{row}-Instruct", f"{row}-chat-2507"):
            found = catalog.read_model_name(name)
            assert found is not None, name
            assert found.row == row, name
        if content.get("hf_id"):
            named = catalog.read_model_name(str(content["hf_id"]))
            assert named is not None
            assert named.row == row


def test_a_catalog_name_itself_stays_as_the_catalog_has_it() -> None:
    assert catalog.model("deepseek-r1").quantization is None
    assert catalog.model("gpt-oss-120b").quantization is None


@pytest.mark.parametrize(
    ("name", "row", "stored"),
    [("llama3.1:8b-instruct-q4_K_M", "llama3.1-8b", "q4_k"),
     ("org/Qwen3-32B-GGUF:Q5_K_M", "qwen3-32b", "q5_k"), ("Qwen3-8B-Q8_0.gguf", "qwen3-8b", "q8_0"),
     ("gemma-3-27b-it-Q3_K_S", "gemma3-27b", "q3_k"),
     ("unsloth/Qwen3-32B-GGUF:UD-Q4_K_XL", "qwen3-32b", "q4_k"),
     ("Qwen3-8B-IQ4_XS.gguf", "qwen3-8b", "q4_k"),
     ("google/gemma-3-12b-it-qat-q4_0-gguf", "gemma3-12b", "int4_wo")],
)  # fmt: skip
def test_files_of_llama_cpp_say_how_they_are_stored(name: str, row: str, stored: str) -> None:
    """Bits of a weight: the file is as large as its data type says."""
    found = catalog.read_model_name(name)
    assert found is not None
    assert (found.row, found.stored) == (row, stored)
    quantization = catalog.model(name).quantization
    assert quantization is not None
    assert quantization.precision == stored


def test_what_nothing_is_called_is_an_error_that_names_the_nearest() -> None:
    assert catalog.read_model_name("org/some-other-13b") is None
    with pytest.raises(InputError, match="did you mean 'llama3-70b'"):
        catalog.model("llama-70b")
    with pytest.raises(InputError, match="mean 'deepseek-v4-flash' or 'deepseek-v4-pro'"):
        catalog.model("DeepSeek-V4")


def test_what_begins_with_a_word_is_near_where_nothing_else_does() -> None:
    assert nearest("qw", ["qwen-of-a-long-name", "llama"]) == "qwen-of-a-long-name"
    assert nearest("qw", ["qwen-of-a-long-name", "qwen-of-another-name"]) is None
    assert nearest("", ["qwen-of-a-long-name"]) is None


MACHINES = {
    "h100": ("DGX-H100", 8, 0),
    "8xH100": ("DGX-H100", 8, 8),
    "H100:4": ("DGX-H100 with 4 per node", 4, 4),
    "16xH200": ("DGX-H200", 8, 16),
    "2x8xH100": ("DGX-H100", 8, 16),
    "2xgb300-nvl72": ("GB300-NVL72", 4, 144),
    "4x dgx-h100": ("DGX-H100", 8, 32),
    "4 x 4 x H100": ("DGX-H100 with 4 per node", 4, 16),
    "2xp5.48xlarge": ("AWS-p5.48xlarge", 8, 16),
    "v5p-128": ("TPU-v5p-pod", 4, 64),
    "tpu-v4-8": ("TPU-v4-pod", 4, 4),
    "v3-32": ("TPU-v3-pod", 4, 16),
    "v5litepod-256": ("TPU-v5e-pod", 8, 256),
    "v5e-4": ("TPU-v5e-pod with 4 per node", 4, 4),
    "v6e-8": ("TPU-v6e-pod", 8, 8),
    "tpu7x-4x4x8": ("TPU-v7-pod", 4, 128),
    "tpu7x-128": ("TPU-v7-pod", 4, 64),
    "v5p-2x2x2": ("TPU-v5p-pod", 4, 8),
    "NVIDIA H100 80GB HBM3": ("DGX-H100", 8, 0),
    "p5.48xlarge": ("AWS-p5.48xlarge", 8, 8),
    "a3-mega": ("GCP-a3-megagpu-8g", 8, 8),
    "ND_H100_v5": ("Azure-ND96isr_H100_v5", 8, 8),
    "Standard_ND96isr_H200_v5": ("Azure-ND96isr_H200_v5", 8, 8),
    "mi300x": ("MI300X-8x", 8, 0),
    "rtx4090": ("RTX4090-8x-PCIe", 8, 0),
}


@pytest.mark.parametrize("written", MACHINES)
def test_a_name_is_taken_for_a_system(written: str) -> None:
    name, per_node, count = MACHINES[written]
    found, meant = catalog.system(written), catalog.read_machine_name(written)
    assert (found.name, found.accelerators_per_node) == (name, per_node)
    assert meant is not None
    assert meant.count == count


def test_several_accelerators_of_a_name_are_told_and_none_is_picked() -> None:
    with pytest.raises(InputError, match=r"may be A100-SXM4-40GB, A100-SXM4-64GB.*name one"):
        catalog.system("a100-sxm4")


def test_every_instance_is_a_node_of_a_catalog_system() -> None:
    for one in instances():
        assert one.count == catalog.system(one.system).accelerators_per_node
        assert (one.price is None) == (one.told == "")


def test_a_request_says_what_names_were_taken_for_and_what_they_cost() -> None:
    import reckon

    plan = {"global_batch": 64, "seq_len": 4096, "tokens": 1e9}
    found = reckon.predict_train("meta-llama/Llama-3.1-8B", "p5.48xlarge", plan)
    own = {one.field: one for one in found.request.assumed}
    assert own["model"].value == "llama3.1-8b"
    assert own["system"].value == "AWS-p5.48xlarge"
    assert own["gpus"].value == 8
    assert own["price_per_gpu_hour"].value == pytest.approx(55.04 / 8)
    stated = reckon.predict_train(
        "llama3.1-8b", "AWS-p5.48xlarge", {**plan, "gpus": 8, "price_per_gpu_hour": 2.0}
    )
    assert stated.request.price == 2.0
    assert stated.step_time.value == found.step_time.value
    assert not {"model", "system"} & {one.field for one in stated.request.assumed}


def test_a_narrow_checkpoint_is_served_as_its_name_says() -> None:
    import reckon

    plan = {"tp": 8, "batch": 8, "input_len": 128, "output_len": 16}
    named = reckon.predict_infer("Qwen/Qwen3-235B-A22B-FP8", "dgx-h200", plan)
    stated = reckon.predict_infer("qwen3-235b-a22b", "dgx-h200", {**plan, "precision": "fp8_block"})
    assert named.tpot.value == stated.tpot.value
    rule = next(one.rule for one in named.request.assumed if one.field == "precision")
    assert "the model's name" in rule


def test_what_was_released_narrow_alone_is_served_so_unless_a_precision_is_stated() -> None:
    """OpenAI 2025 (gpt-oss model card): experts in MXFP4, the 120b on one 80 GB card."""
    import reckon

    plan = {"tp": 1, "gpus": 1, "batch": 8, "input_len": 128, "output_len": 16}
    found = {
        stated: reckon.predict_infer(
            "gpt-oss-120b", "dgx-h100", {**plan, **({"precision": stated} if stated else {})}
        )
        for stated in ("", "mxfp4", "MXFP4", "bf16")
    }
    assert [bool(one.fits) for one in found.values()] == [True, True, True, False]
    assert found[""].request.plan.narrowed == "experts"
    assert found["mxfp4"].tpot.value == found["MXFP4"].tpot.value == found[""].tpot.value
    rules = {one.field: one.rule for one in found[""].request.assumed}
    assert "its checkpoint is stored so" in rules["precision"]


def test_an_entry_is_shown_under_any_of_its_names() -> None:
    one, other = (catalog.spec_of("models", n) for n in ("qwen3-8b", "Qwen/Qwen3-8B"))
    assert to_mapping(one) == to_mapping(other)


@pytest.mark.parametrize(
    ("written", "row"),
    [
        ("RTX 4070", "RTX-4070-12GB"),  # not the Ti, whose name begins so
        ("Quadro RTX 6000", "Quadro-RTX-6000-24GB"),
        ("RTX 6000 Ada", "RTX-6000Ada-48GB"),
        ("AMD Radeon RX 7900 XTX", "RX-7900XTX-24GB"),
        ("Apple M2 Ultra", "Apple-M2Ultra-76c-192GB"),
        ("NVIDIA H20-3e", "H20-141GB"),
        ("V100", "V100-SXM2-32GB"),
        ("H100-80GB-SXM", "H100-SXM5-80GB"),  # words in any order
        ("H200 141 GB SXM", "H200-SXM-141GB"),
        ("A100 40GB PCIe", "A100-PCIe-40GB"),
        ("MI300X OAM 192GB HBM3", "MI300X-192GB"),
        ("HGX B200", "B200-SXM-180GB"),  # the board says nothing
        ("Blackwell Ultra B300", "B300-SXM-288GB"),
        ("NVIDIA GB200 Grace Blackwell Superchip", "GB200-186GB"),
        ("8x NVIDIA H100 80GB HBM3", "H100-SXM5-80GB"),  # so many of it
        ("trn2.48xlarge", "Trainium2-96GB"),  # an instance
        ("TPU v6e-256", "TPUv6e"),  # a slice
        ("DGX-2", "V100-SXM3-32GB"),  # a system
        ("VR200 NVL72", "R100-288GB"),
        ("GB300 NVL72 (288GB)", "GB300-288GB"),  # the rack says nothing
        ("NVIDIA H100 Tensor Core GPU", "H100-SXM5-80GB"),
        ("H100 80GB SXM5 (NVLink)", "H100-SXM5-80GB"),
        ("B300-SXM6", "B300-SXM-288GB"),
        ("TPU v5 lite", "TPUv5e"),  # as JAX calls it
        ("Trn3", "Trainium3-144GB"),
    ],
)
def test_accelerators_as_people_call_them(written: str, row: str) -> None:
    assert catalog.accelerator(written).name == row


def test_a_chip_with_other_memory_is_that_chip() -> None:
    known, other = catalog.accelerator("H100-SXM5-80GB"), catalog.accelerator("H100-SXM5-72GB")
    assert other.name == "H100-SXM5-72GB"
    assert other.memory == 72 * 2.0**30
    assert (other.peak, other.bandwidth) == (known.peak, known.bandwidth)
    # Of two of a chip, the one with the memory nearest to it: their bandwidths differ.
    near = catalog.accelerator("A100-SXM4-42GB")
    assert near.bandwidth == catalog.accelerator("A100-SXM4-40GB").bandwidth
    # It is in the nodes of that chip, not a card behind PCIe.
    for name, count in (("H100-SXM5-72GB", 8), ("4xH100-SXM5-72GB", 4), ("GH200-144GB", 1)):
        node = catalog.system(name)
        assert (node.tiers[0].link, node.accelerators_per_node) == ("nvlink4", count)
        assert node.accelerator.name == name.removeprefix("4x")
    with pytest.raises(InputError, match="unknown accelerator 'Z100-80GB'"):
        catalog.accelerator("Z100-80GB")


@pytest.mark.parametrize(
    ("tag", "row"), [("llama3.1:8b", "llama3.1-8b"), ("qwen3:32b", "qwen3-32b")]
)
def test_a_colon_parts_words(tag: str, row: str) -> None:
    assert catalog.model(tag).name == row


@pytest.mark.parametrize("name", ["0x8xH100", "0xH100", "2x0xH100"])
def test_no_machine_is_named_by_nought_of_it(name: str) -> None:
    assert catalog.read_machine_name(name) is None


@pytest.mark.parametrize(
    ("written", "known"),
    [
        ("H100-SXM-80GB", "H100-SXM5-80GB"),
        ("NVIDIA H200-SXM5-141GB", "H200-SXM-141GB"),
        ("b200-sxm6-180gb", "B200-SXM-180GB"),
        ("H100-SXM5-80GB-HBM3", "H100-SXM5-80GB"),
        ("RTX 4060", "RTX-4060-8GB"),  # not the 4060 Ti
        ("RX 7900 XT", "RX-7900XT-20GB"),
        ("Huawei Ascend 910B4 32GB", "Ascend-910B4-32GB"),
    ],
)
def test_sockets_and_kinds_of_memory_are_guessed_by_people(written: str, known: str) -> None:
    assert catalog.accelerator(written).name == known


def test_a_socket_that_may_be_two_is_asked_for() -> None:
    with pytest.raises(InputError, match="V100-SXM2-32GB, V100-SXM3-32GB"):
        catalog.accelerator("V100-SXM-32GB")


@pytest.mark.parametrize(
    ("written", "system", "row", "gib"),
    [
        ("Max 1550", "Aurora", "PVC-Max1550-128GB", 128),
        ("Intel Data Center GPU Max 1550", "Aurora", "PVC-Max1550-128GB", 128),
        ("Ponte Vecchio", "Aurora", "PVC-Max1550-128GB", 128),
        ("Rubin Ultra", "VR300-NVL144", "Rubin-Ultra-1024GB", 1024),
        ("Ascend 910B1", "Atlas-800T-A2-B1", "Ascend-910B1-64GB", 64),
    ],
)
def test_a_name_means_the_whole_device(written: str, system: str, row: str, gib: int) -> None:
    found = catalog.system(written)
    assert (found.name, found.accelerator.name) == (system, row)
    assert float(found.accelerator.memory) == pytest.approx(gib * 2.0**30)


def test_one_stack_of_a_device_is_half_of_it() -> None:
    whole, half = (catalog.accelerator(f"PVC-Max1550-{n}") for n in ("128GB", "tile-64GB"))
    for name in ("bf16", "fp32", "int8"):
        assert float(whole.peak[name]) == pytest.approx(2 * float(half.peak[name]), rel=0.01)
    assert float(whole.bandwidth) == pytest.approx(2 * float(half.bandwidth), rel=0.01)
    assert whole.sms == 2 * half.sms


@pytest.mark.parametrize(("name", "billions"), [("nemotron-h-47b", 46.8), ("nemotron-h-4b", 4.49)])
def test_pruned_hybrids_have_their_parameters(name: str, billions: float) -> None:
    assert catalog.model(name).parameters / 1e9 == pytest.approx(billions, rel=0.01)
