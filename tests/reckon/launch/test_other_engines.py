"""Lines of TGI, LMDeploy and llama.cpp, as their own pages give them."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.errors import InputError
from reckon.launch import read_launch
from reckon.verbs.judging import check
from reckon.views.judged import show_judged

TGI = "text-generation-launcher --model-id meta-llama/Llama-3.1-70B-Instruct "
LMDEPLOY = "lmdeploy serve api_server Qwen/Qwen3-30B-A3B "
DENSE = "lmdeploy serve api_server meta-llama/Llama-3.1-70B-Instruct "
LLAMA = "./build/bin/llama-server -m /models/Meta-Llama-3-8B-Instruct.Q4_K_M.gguf "


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--num-shard 4 --sharded true", {"tp": 4, "pp": 1, "dp": 1}),
        ("--sharded false --num-shard 4", {"tp": 1}),
        ("--quantize bitsandbytes-nf4", {"precision": "int4_wo"}),
        ("--quantize eetq --kv-cache-dtype fp8_e5m2",
         {"precision": "int8_wo", "kv_precision": "fp8"}),
        ("--dtype float16", {"precision": "fp16"}),
        ("--max-concurrent-requests 512 --max-batch-size 96", {"max_batch": 96}),
        ("--max-input-length 4096", {"chunk": 4146}),
        ("--max-input-tokens 4096 --max-batch-prefill-tokens 16384", {"chunk": 16384}),
        ("--cuda-graphs 0", {"execution": "eager"}),
        ("--cuda-graphs 1,2,64", {"execution": "graph", "graph_limit": 64}),
        ("--speculate 3 --max-waiting-tokens 7 --cuda-memory-fraction 0.9",
         {"drafted": 3, "polling": 7, "memory_fraction": 0.9}),
    ],
)  # fmt: skip
def test_flags_of_tgi(flags: str, said: dict[str, object]) -> None:
    launch = read_launch("tgi", TGI + flags)
    assert launch.model is not None
    assert said.items() <= launch.fields.items()
    assert launch.unknown == []


def test_variables_of_tgi_and_its_image(tmp_path: Path) -> None:
    """Flags count before them; without a number of shards that is told."""
    compose = tmp_path / "compose.yml"
    compose.write_text(
        "services:\n  tgi:\n    image: ghcr.io/huggingface/text-generation-inference:3.3.4\n"
        "    environment:\n      MODEL_ID: meta-llama/Llama-3.1-8B-Instruct\n"
        "      NUM_SHARD: 2\n      QUANTIZE: fp8\n      PREFIX_CACHING: 0\n"
        "    command: --max-concurrent-requests 64\n"
    )
    launch = read_launch("tgi", str(compose))
    expected = {"tp": 2, "precision": "fp8", "prefix_cache": "off", "max_batch": 64,
                "version": "3.3.4"}  # fmt: skip
    assert expected.items() <= launch.fields.items()
    docker = ("docker run --gpus all -e QUANTIZE=awq -e NUM_SHARD=8 -v $PWD/data:/data "
              "ghcr.io/huggingface/text-generation-inference:3.0.0 --model-id Qwen/Qwen3-32B "
              "--num-shard 4 --max-batch-total-tokens 100000")  # fmt: skip
    launch = read_launch("tgi", docker)
    assert {"tp": 4, "precision": "int4_wo"}.items() <= launch.fields.items()
    assert launch.unknown == ["--max-batch-total-tokens"]
    assert any("takes all accelerators" in note for note in read_launch("tgi", TGI).notes)
    with pytest.raises(InputError, match="TGI's backend of TensorRT-LLM"):
        read_launch("tgi", docker.replace(":3.0.0", ":3.0.0-trtllm"))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (DENSE + "--tp 4 --dp 2", {"tp": 4, "dp": 2, "ep": 1}),
        (DENSE + "--quant-policy 8 --model-format awq",
         {"kv_precision": "int8", "precision": "int4_wo"}),
        (DENSE + "--quant-policy fp8_e4m3", {"kv_precision": "fp8"}),
        (DENSE + "--backend pytorch --eager-mode", {"execution": "eager"}),
        (DENSE + "--max-batch-size 64 --cache-max-entry-count 0.5 --max-prefill-token-num 4096",
         {"max_batch": 64, "memory_fraction": 0.5, "chunk": 4096}),
        (DENSE + "--enable-prefix-caching --async 0 --communicator cuda-ipc",
         {"prefix_cache": "on", "scheduling": "serial", "allreduce": "custom"}),
        (LMDEPLOY + "--tp 8 --ep 8", {"tp": 8, "dp": 1, "ep": 8}),
        (LMDEPLOY + "--tp 2 --dp 4 --ep 8", {"tp": 2, "dp": 4, "ep": 8}),
        (LMDEPLOY + "--backend pytorch --dp 4 --ep 8", {"tp": 2, "dp": 4, "ep": 8}),
        (LMDEPLOY + "--backend pytorch --tp 8 --dp 4", {"tp": 2, "dp": 4, "ep": 1}),
        (LMDEPLOY + "--backend pytorch --speculative-algorithm eagle3 "
         "--speculative-num-draft-tokens 3 --cudagraph-capture-batch-sizes 1 2 4 8",
         {"drafted": 3, "graph_limit": 8, "execution": "graph"}),
        ("docker run --gpus all openmmlab/lmdeploy:v0.9.2 " + LMDEPLOY, {"version": "0.9.2"}),
    ],
)  # fmt: skip
def test_flags_of_lmdeploy(line: str, said: dict[str, object]) -> None:
    launch = read_launch("lmdeploy", line)
    assert launch.model is not None
    assert said.items() <= launch.fields.items()
    assert launch.unknown == []


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (LMDEPLOY + "--tp 2 --dp 4", "makes islands of it"),
        (LMDEPLOY + "--backend pytorch --tp 3 --dp 2", "--dp 2 does not divide the 3 ranks"),
        (DENSE + "--backend pytorch --tp 2 --dp 2", "attention of a dense model"),
        (DENSE + "--quant-policy 42", "known are 0, 4, int4"),
    ],
)
def test_what_lmdeploy_does_that_is_not_predicted(line: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        read_launch("lmdeploy", line)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("-ngl 99 -c 8192 -np 8 -fa on", {"precision": "q4_k", "max_batch": 8}),
        ("", {"max_batch": 4, "tp": 1}),
        ("-sm none", {"tp": 1, "pp": 1}),
        ("-ts 3,1,0", {"tp": 1, "pp": 2}),
        ("-sm row -dev CUDA0,CUDA1", {"tp": 1, "pp": 2, "pipelining": "rows"}),
        ("--split-mode tensor -ts 1,1,1,1", {"tp": 4, "pp": 1}),
        ("-ctk q8_0 -ctv q8_0", {"kv_precision": "int8"}),
        ("-b 4096 -ub 1024", {"chunk": 1024, "window": 4}),
        ("-b 256", {"chunk": 256, "window": 1}),
        ("-md draft.gguf --draft-max 8", {"drafted": 8}),
        ("--spec-type draft-mtp", {"drafted": 3}),
        ("--spec-type ngram-mod", {"drafted": 0}),
        ("--no-cache-prompt --swa-full", {"prefix_cache": "off", "windows": "unset"}),
        ("-t 8 --jinja --temp 0.6 --no-mmap --mlock --host 0.0.0.0 -a me", {}),
    ],
)
def test_flags_of_llama_cpp(flags: str, said: dict[str, object]) -> None:
    launch = read_launch("llama-cpp", LLAMA + flags)
    assert launch.model is not None
    assert launch.model.name == "llama3-8b"
    assert said.items() <= launch.fields.items()
    assert launch.unknown == []


@pytest.mark.parametrize(
    ("named", "model", "stored"),
    [
        ("-m Meta-Llama-3-8B-F16.gguf", "llama3-8b", "fp16"),
        ("--model models/Qwen_Qwen3-8B-Q5_K_M.gguf", "qwen3-8b", "q5_k"),
        ("-hf unsloth/Qwen3-8B-GGUF:UD-Q4_K_XL", "qwen3-8b", "q4_k"),
        ("-hf bartowski/Meta-Llama-3-8B-Instruct-GGUF", "llama3-8b", None),
        ("--hf-repo unsloth/Qwen3-8B-GGUF --hf-file Qwen3-8B-Q8_0.gguf", "qwen3-8b", "q8_0"),
        ("-m gpt-oss-20b-mxfp4.gguf", "gpt-oss-20b", "mxfp4"),
        ("-m DeepSeek-V3-Q4_K_M-00001-of-00008.gguf", "deepseek-v3", "q4_k"),
    ],
)
def test_files_of_llama_cpp(named: str, model: str, stored: str | None) -> None:
    launch = read_launch("llama-cpp", f"llama-server {named}")
    assert launch.model is not None
    assert launch.model.name == model
    assert launch.fields.get("precision") == stored


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ("-ngl 20", "20 of 32 layers: what the host's processor computes"),
        ("--n-cpu-moe 10", "host's processor computes, as --n-cpu-moe shows"),
        ("-ctk q8_0", "one data type only"),
        ("-ctk q5_1 -ctv q5_1", "known are f32, f16, bf16, q8_0, q4_0"),
    ],
)
def test_what_llama_cpp_does_that_is_not_predicted(flags: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        read_launch("llama-cpp", LLAMA + flags)


def test_weights_that_are_not_predicted_may_be_stated_beside() -> None:
    line = "llama-server -hf unsloth/DeepSeek-R1-GGUF:UD-Q2_K_XL -ngl all"
    with pytest.raises(InputError, match="weights UD-Q2_K_XL are not predicted"):
        read_launch("llama-cpp", line)
    launch = read_launch("llama-cpp", line, beside={"precision": "q3_k"})
    assert launch.model is not None


def test_variables_of_llama_cpp(tmp_path: Path) -> None:
    compose = tmp_path / "compose.yml"
    compose.write_text(
        "services:\n  llm:\n    image: ghcr.io/ggml-org/llama.cpp:server-cuda\n"
        "    command: -ngl 99 --metrics\n    environment:\n"
        "      LLAMA_ARG_MODEL: /models/Meta-Llama-3-8B-Q6_K.gguf\n      LLAMA_ARG_CTX_SIZE: 4096\n"
        "      LLAMA_ARG_N_PARALLEL: 2\n"
    )
    launch = read_launch("llama-cpp", str(compose))
    assert {"precision": "q6_k", "max_batch": 2}.items() <= launch.fields.items()
    assert launch.model is not None
    assert launch.model.name == "llama3-8b"


@pytest.mark.parametrize(
    ("line", "system"),
    [
        ("docker run ghcr.io/huggingface/text-generation-inference:3.3.5 --model-id "
         "meta-llama/Llama-3.1-8B-Instruct --num-shard 1", "dgx-h100"),
        ("docker run vllm/vllm-openai:v0.8.5 --model meta-llama/Llama-3.1-8B-Instruct", "gaudi3"),
    ],
)  # fmt: skip
def test_an_image_that_names_its_release_is_predicted(line: str, system: str) -> None:
    """It was refused: no releases of TGI, or of vLLM's port to Gaudi, were known."""
    load = {"system": system, "concurrency": 2, "input_len": 256, "output_len": 64}
    found = check(line, load)
    assert found.launch is not None
    assert found.launch.fields["version"] in line
    assert found.result.fits


def test_a_workload_of_several_pods_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    text = """
kind: Deployment
spec:
  replicas: 3
  template:
    spec:
      containers:
      - image: vllm/vllm-openai
        args: ["--model=Qwen/Qwen3-32B", "--tensor-parallel-size=8"]
        resources: {limits: {nvidia.com/gpu: 8}}
"""
    notes = read_launch("vllm", text).notes
    assert any("starts 3 of them" in note and "--set replicas=3" in note for note in notes)
    load = {"system": "dgx-h100", "concurrency": 2, "input_len": 256, "output_len": 64}
    show_judged(check(text, load))
    told = capsys.readouterr().out
    assert "understood (vllm): qwen3-32b, tp=8" in told
    assert "note: the manifest starts 3 of them" in told
