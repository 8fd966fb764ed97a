"""Names that drivers, public checkpoints and tables of strangers write."""

from __future__ import annotations

import pytest

from predictor import catalog
from predictor.catalog.machine_names import accelerator_of, read_machine_name
from predictor.catalog.model_names import read_model_name
from predictor.catalog.names import recognised
from predictor.errors import InputError


@pytest.mark.parametrize("name", ["Blackwell", "Grace Blackwell", "Hopper", "Ampere", "NVL72"])
def test_generation_alone_is_no_accelerator(name: str) -> None:
    assert read_machine_name(name) is None
    assert accelerator_of(name) is None


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("NVIDIA B300 SXM6 AC", "B300-SXM-288GB"),
        ("MI300X-O", "MI300X-192GB"),
        ("NVIDIA GH200 120GB", "GH200-96GB"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX-6000Ada-48GB"),
        ("TPU Trillium", "TPUv6e"),
        ("TPU Ironwood", "TPUv7"),
        ("Gaudi3 HL-325L", "Gaudi3-128GB"),
        ("HL-225H", "Gaudi2-96GB"),
        ("2080 Ti", "RTX-2080Ti-11GB"),
        ("3090Ti", "RTX-3090Ti-24GB"),
        ("Vera Rubin NVL144", "R100-288GB"),
        ("Rubin Ultra NVL576", "Rubin-Ultra-1024GB"),
        ("GTX 1080", "GTX-1080-8GB"),
        ("RX 9070", "RX-9070-16GB"),
        ("Tesla K80", "K80-12GB"),
        ("Quadro RTX 5000", "Quadro-RTX-5000-16GB"),
        ("RTX 4060 Ti", "RTX-4060Ti-16GB"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTX-PRO-6000-MaxQ-96GB"),
        ("NVIDIA Jetson Orin Nano", "Jetson-Orin-Nano-8GB"),
        ("Habana Gaudi", "Gaudi1-32GB"),
        ("Ascend 310P3", "Ascend-310P3-24GB"),
        ("Hygon DCU K100-AI", "Hygon-K100AI-64GB"),
        ("MetaX C500", "MetaX-C500-64GB"),
        ("dl1.24xlarge", "Gaudi1-32GB"),
        ("M5 Max", "Apple-M5Max-40c-128GB"),
    ],
)
def test_accelerators_as_drivers_and_tables_call_them(name: str, row: str) -> None:
    assert accelerator_of(name) == row


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("deepseek-ai/DeepSeek-Prover-V2-671B", "deepseek-v3"),
        ("dsv3", "deepseek-v3"),
        ("DS-R1", "deepseek-r1"),
        ("Qwen/QVQ-72B-Preview", "qwen2-72b"),
        ("moonshotai/Kimi-Dev-72B", "qwen2.5-72b"),
        ("nvidia/OpenReasoning-Nemotron-32B", "qwen2.5-32b"),
        ("nvidia/AceReason-Nemotron-14B", "qwen2.5-14b"),
        ("THUDM/GLM-Z1-32B-0414", "glm-4-32b-0414"),
        ("mistralai/Mathstral-7B-v0.1", "mistral-7b-v0.3"),
        ("bigscience/bloomz-7b1", "bloom-7b1"),
        ("allenai/Olmo-3-7B-Think", "olmo3-7b"),
        ("allenai/Olmo-3.1-32B-Think", "olmo3-32b"),
        ("GLM-4.5-355B-A32B", "glm-4.5"),
        ("GLM-5 744B", "glm-5"),
        ("Phi-4 14B", "phi-4"),
    ],
)
def test_models_as_checkpoints_and_tables_call_them(name: str, row: str) -> None:
    read = read_model_name(name)
    assert read is not None
    assert read.row == row


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("mbridge", "megatron-bridge"),
        ("NeMo 2.0", "nemo"),
        ("FSDP2", "torchtitan"),
        ("PyTorch FSDP2", "torchtitan"),
        ("HF Accelerate", "huggingface"),
        ("vllm-ascend 0.9.1", "vllm"),
    ],
)
def test_frameworks_as_tables_call_them(name: str, own: str) -> None:
    assert recognised(name, ("megatron-bridge", "nemo", "torchtitan", "huggingface", "vllm")) == own


@pytest.mark.parametrize(
    ("name", "row", "count"),
    [
        ("g5.12xlarge", "A10G-24GB", 4),
        ("ml.g6e.48xlarge", "L40S-48GB", 8),
        ("g5", "A10G-24GB", 0),
        ("ml.p4d.24xlarge", "A100-SXM4-40GB", 8),
        ("p5e.48xlarge", "H200-SXM-141GB", 8),
        ("a2-ultragpu-4g", "A100-SXM4-80GB", 4),
        ("a4x-highgpu-4g", "GB200-186GB", 4),
        ("NC96ads_A100_v4", "A100-PCIe-80GB", 4),
        ("Standard_NC80adis_H100_v5", "H100-NVL-94GB", 2),
        ("ND-H200", "H200-SXM-141GB", 8),
        ("BM.GPU.H100.8", "H100-SXM5-80GB", 8),
        ("BM.GPU4.8", "A100-SXM4-40GB", 8),
        ("4x g5.12xlarge", "A10G-24GB", 16),
        ("8\u00d7H100", "H100-SXM5-80GB", 8),
        ("64 H100s", "H100-SXM5-80GB", 64),
        ("8 V100s", "V100-SXM2-32GB", 8),
        ("8 V100S", "V100S-PCIe-32GB", 8),
        ("8 L40S", "L40S-48GB", 8),
        ("16 A100 GPUs", "A100-SXM4-80GB", 16),
    ],
)
def test_machines_of_clouds_and_counts_in_text(name: str, row: str, count: int) -> None:
    found = read_machine_name(name)
    assert accelerator_of(name) == row
    assert found is not None
    assert found.count == count


@pytest.mark.parametrize(
    "name", ["GTX 1660", "RX 9090", "B20", "B30", "7900 XT", "GPU.H100.8", "RTX 206", "M6"]
)
def test_the_beginning_of_another_chip_names_none(name: str) -> None:
    assert accelerator_of(name) is None


def test_every_instance_has_a_catalog_accelerator() -> None:
    table = catalog.read_mapping(catalog.data_dir() / "defaults" / "instances.yaml")
    assert set(table) <= set(catalog.rows("accelerators"))
    for row, named in table.items():
        for name, count in named.items():
            found = read_machine_name(name)
            assert found is not None
            assert (found.accelerator, found.count) == (row, count)


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("GPT-NeoX", "gpt-neox-20b"),
        ("GPT-J", "gpt-j-6b"),
        ("gpt3", "gpt3-175b"),
        ("Llama 405B", "llama3.1-405b"),
        ("unsloth/Qwen3-30B-A3B-GGUF", "qwen3-30b-a3b"),
    ],
)
def test_models_without_their_size(name: str, row: str) -> None:
    read = read_model_name(name)
    assert read is not None
    assert read.row == row


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("unsloth", "unsloth"),
        ("veRL", "fms-fsdp"),
        ("XTuner V1", "torchtitan"),
        ("slime", "megatron-lm"),
        ("dynamo-trt", "tensorrt-llm"),
        ("vLLM TPU", "vllm"),
    ],
)
def test_frameworks_built_on_others(name: str, own: str) -> None:
    assert recognised(name, {*catalog.frameworks(), *catalog.all_engines()}) == own


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Groq LPU", "hundreds of chips"),
        ("Cerebras CS-3", "wafer"),
        ("Graphcore IPU-POD16", "no other"),
        ("MetaX N260", "no public datasheet"),
    ],
)
def test_machines_that_are_not_predicted_say_why(name: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        catalog.accelerator(name)


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("meta-llama/Llama-3.2-11B-Vision-Instruct", "llama3.1-8b"),
        ("deepseek-ai/deepseek-vl2", "deepseek-vl2-27b"),
        ("deepseek-ai/DeepSeek-OCR", "deepseek-vl2-3b"),
        ("allenai/Molmo-72B-0924", "qwen2-72b"),
        ("AIDC-AI/Ovis2-34B", "qwen2.5-32b"),
        ("inclusionAI/Ling-plus", "ling-plus-290b-a29b"),
        ("inclusionAI/Ling-lite", "ling-lite-16.8b-a2.8b"),
        ("lmsys/vicuna-33b-v1.3", "llama1-33b"),
        ("tencent/Hunyuan-7B-Instruct", "hunyuan-7b"),
        ("Jurassic-1", "jurassic-1-178b"),
        ("GLaM", "glam-1.2t-a97b"),
        ("ibm-granite/granite-4.0-1b", "granite-4.0-1b"),
    ],
)
def test_models_of_the_last_and_of_earlier_years(name: str, row: str) -> None:
    assert catalog.model(name).name == row


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("ViT-22B", "encoder only"),
        ("FLUX.1-dev", "diffusion"),
        ("Evo2-40B", "long convolutions"),
        ("apple/OpenELM-3B", "in each layer"),
        ("stepfun-ai/step3", "rank of their own"),
        ("ResNet-50", "no language model"),
    ],
)
def test_models_that_are_not_predicted_say_why(name: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        catalog.model(name)
