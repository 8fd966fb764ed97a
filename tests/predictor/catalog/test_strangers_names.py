"""Names that drivers, public checkpoints and tables of strangers write."""

from __future__ import annotations

import pytest

from predictor.catalog.machine_names import accelerator_of, read_machine_name
from predictor.catalog.model_names import read_model_name
from predictor.catalog.names import recognised


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
