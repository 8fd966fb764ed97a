"""Forms of engines' launch lines of 2023 to 2026, as their argument parsers take them."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.errors import InputError
from reckon.launch import read_launch

VLLM = "vllm serve Qwen/Qwen3-32B "
SGLANG = "python3 -m sglang.launch_server --model-path {} "
TRTLLM = "trtllm-serve Qwen/Qwen3-30B-A3B "


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--cuda-graph-sizes 1 2 4 8 16", {"graph_limit": 16, "prompt_graphs": 16}),
        ("--max-cudagraph-capture-size 2048", {"graph_limit": 2048, "prompt_graphs": 2048}),
        (
            "--max-cudagraph-capture-size 64 -cc.cudagraph_mode=FULL_DECODE_ONLY",
            {"graph_limit": 64, "prompt_graphs": 0},
        ),
        ("--stream-interval 20", {}),
        ("--cudagraph-capture-sizes 1,2,4", {"graph_limit": 4}),
        ("--max-num-batched-tokens 8k --max-num-seqs 1K", {"chunk": 8000, "max_batch": 1024}),
        ("--num-speculative-tokens 5 --speculative-model a/b", {"drafted": 5}),
        ("--kv-cache-dtype nvfp4", {"kv_precision": "nvfp4"}),
        ("--kv-cache-dtype int8", {"kv_precision": "int8"}),
        ("-O0", {"execution": "eager"}),
        ("-O3", {"execution": "graph"}),
        ("-cc.cudagraph_mode=NONE", {"execution": "eager"}),
        ("--compilation-config '{\"cudagraph_capture_sizes\": [1, 2, 4]}'", {"graph_limit": 4}),
        ("--quantization bitsandbytes", {"precision": "int4_wo"}),
        ("--quantization gptq_bitblas", {"precision": "int4_wo"}),
    ],
)
def test_flags_of_vllm(flags: str, said: dict[str, object]) -> None:
    launch = read_launch("vllm", VLLM + flags)
    assert said.items() <= launch.fields.items()
    assert set(launch.unknown) <= {"--speculative-model"}


def test_experts_of_vllm_by_their_short_flag() -> None:
    assert read_launch("vllm", "vllm serve Qwen/Qwen3-30B-A3B -tp 4 -ep").fields["ep"] == 4


def test_a_cache_that_nobody_knows_is_refused() -> None:
    with pytest.raises(InputError, match="--kv-cache-dtype strange: known are auto"):
        read_launch("vllm", VLLM + "--kv-cache-dtype strange")


def test_a_file_of_options_counts_behind_the_flags(tmp_path: Path) -> None:
    """What vLLM reads from `--config`; one that is not there is told as what matters most."""
    (tmp_path / "own.yaml").write_text("tensor-parallel-size: 4\nmax_num_seqs: 64\n")
    script = tmp_path / "run.sh"
    script.write_text(VLLM + "--config own.yaml --max-num-seqs 32\n")
    fields = read_launch("vllm", str(script)).fields
    assert (fields["tp"], fields["max_batch"]) == (4, 32)
    assert read_launch("vllm", VLLM + "--block-size 32 --config no.yaml").unknown[0] == "--config"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("vllm bench throughput --model Qwen/Qwen3-8B --input-len 9 --output-len 8",
         {"saturated": True, "input_len": 9}),
        ("python benchmarks/benchmark_throughput.py --model Qwen/Qwen3-8B --input-len 9",
         {"saturated": True}),
        ("vllm bench latency --model Qwen/Qwen3-8B",
         {"batch": 8, "input_len": 32, "output_len": 128}),
        ("python benchmarks/benchmark_latency.py --model Qwen/Qwen3-8B --batch-size 4",
         {"batch": 4, "input_len": 32}),
    ],
)  # fmt: skip
def test_offline_benchmarks_of_vllm_say_their_load(line: str, said: dict[str, object]) -> None:
    assert said.items() <= read_launch("vllm", line).fields.items()


@pytest.mark.parametrize(
    ("model", "flags", "said"),
    [
        ("deepseek-ai/DeepSeek-R1", "--speculative-algorithm NEXTN", {"drafted": 3}),
        ("meta-llama/Llama-3.1-8B", "--speculative-algorithm EAGLE3", {"drafted": 5}),
        ("meta-llama/Llama-3.1-8B", "--speculative-num-steps 2", {"drafted": 2}),
        ("Qwen/Qwen3-32B", "--kv-cache-dtype fp4_e2m1", {"kv_precision": "nvfp4"}),
        ("Qwen/Qwen3-32B", "--cuda-graph-bs 1 2 32", {"graph_limit": 32}),
        ("Qwen/Qwen3-32B", "--piecewise-cuda-graph-max-tokens 4096", {"prompt_graphs": 4096}),
        ("Qwen/Qwen3-32B", "--disable-piecewise-cuda-graph", {"prompt_graphs": 0}),
        ("Qwen/Qwen3-32B", "--stream-interval 30", {"front_end": "beside"}),
        ("Qwen/Qwen3-32B", "--stream-interval 1 --tokenizer-worker-num 4", {"front_end": "beside"}),
        ("Qwen/Qwen3-32B", "--torchao-config int4wo-128", {"precision": "int4_wo"}),
        ("Qwen/Qwen3-32B", "--torchao-config fp8dq-per_row", {"precision": "fp8"}),
        ("Qwen/Qwen3-32B", "--chunked-prefill-size -1", {"chunk": 2**20}),
        ("Qwen/Qwen2.5-7B-Instruct-1M", "--tp 4", {"tp": 4}),
    ],
)
def test_flags_of_sglang(model: str, flags: str, said: dict[str, object]) -> None:
    launch = read_launch("sglang", SGLANG.format(model) + flags)
    assert launch.model is not None
    assert said.items() <= launch.fields.items()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (TRTLLM + "--kv_cache_dtype fp8", {"kv_precision": "fp8"}),
        (TRTLLM + "--tp_size 4 --moe_expert_parallel_size 4", {"ep": 4}),
        (TRTLLM + "--tp_size 4 --enable_attention_dp", {"tp": 1, "dp": 4}),
        (TRTLLM + "--free_gpu_memory_fraction 0.8", {"memory_fraction": 0.8}),
        (TRTLLM + "--num_postprocess_workers 4", {"front_end": "beside"}),
        ("trtllm-bench --model Qwen/Qwen3-8B throughput --dataset d --concurrency 64",
         {"concurrency": 64}),
        ("trtllm-bench -m Qwen/Qwen3-8B --model_path /x throughput --dataset d",
         {"saturated": True}),
        ("trtllm-bench -m Qwen/Qwen3-8B latency --dataset d", {"concurrency": 1}),
    ],
)  # fmt: skip
def test_flags_of_tensorrt_llm(line: str, said: dict[str, object]) -> None:
    launch = read_launch("trtllm", line)
    assert launch.model is not None
    assert said.items() <= launch.fields.items()


def test_options_of_tensorrt_llm_in_a_file(tmp_path: Path) -> None:
    """Its cache is shared as its release does unless told: nothing is said of it here."""
    (tmp_path / "own.yaml").write_text(
        "cuda_graph_config:\n  batch_sizes: [1, 2, 48]\nkv_cache_config:\n  dtype: nvfp4\n"
    )
    script = tmp_path / "run.sh"
    script.write_text(TRTLLM + "--config own.yaml\n")
    fields = read_launch("trtllm", str(script)).fields
    assert (fields["graph_limit"], fields["kv_precision"]) == (48, "nvfp4")
    assert "prefix_cache" not in fields


@pytest.mark.parametrize(
    ("name", "line", "version"),
    [
        ("vllm", "docker run vllm/vllm-openai:v0.9.2 --model Qwen/Qwen3-8B", "0.9.2"),
        ("vllm", f"pip install vllm==0.6.3\n{VLLM}", "0.6.3"),
        ("vllm", "docker run vllm/vllm-openai:latest --model Qwen/Qwen3-8B", None),
        ("sglang", "docker run lmsysorg/sglang:v0.5.5-cu129 " + SGLANG.format("Qwen/Qwen3-8B"),
         "0.5.5"),
        ("trtllm", f"docker run nvcr.io/nvidia/tensorrt-llm/release:1.1.0rc2 {TRTLLM}", "1.1.0"),
    ],
)  # fmt: skip
def test_images_name_their_release(name: str, line: str, version: str | None) -> None:
    """Unless an era is given beside the line."""
    assert read_launch(name, line).fields.get("version") == version
    assert "version" not in read_launch(name, line, beside={"era": "2025-01"}).fields


@pytest.mark.parametrize(
    ("line", "engine"),
    [
        ("llama-bench -m x.gguf -p 512", "llama.cpp"),
        ("ollama run llama3.1:70b", "llama.cpp"),
        ("python -m mlc_llm serve HF://mlc-ai/Llama-3-8B-q4f16_1-MLC", "mlc-llm"),
        ("docker run nvcr.io/nim/meta/llama-3.1-70b-instruct:1.3.0", "nim"),
        ("python run_generation.py --use_hpu_graphs --batch_size 8", "optimum-habana"),
    ],
)
def test_lines_of_engines_that_are_not_read_are_refused_by_their_name(
    line: str, engine: str
) -> None:
    with pytest.raises(InputError, match=f"the line is of {engine}, which is not read"):
        read_launch("vllm", line)


@pytest.mark.parametrize(
    "said",
    ["export VLLM_ALL2ALL_BACKEND=deepep_low_latency\n",
     "docker run -e VLLM_ALL2ALL_BACKEND='deepep_high_throughput' vllm/vllm-openai:v0.10.1 "],
)  # fmt: skip
def test_variables_that_flags_say_today(said: str) -> None:
    flags = "--data-parallel-size 8 --enable-expert-parallel "
    line = f"{said}vllm serve Qwen/Qwen3-30B-A3B {flags}"
    assert read_launch("vllm", line).fields["exchange"] == "deepep"
    stated = read_launch("vllm", line + "--all2all-backend naive")
    assert stated.fields["exchange"] == "gather"


def test_the_engine_of_old_is_told(tmp_path: Path) -> None:
    """Its releases' defaults are others; nothing else in the line says so."""
    compose = tmp_path / "compose.yml"
    compose.write_text(
        "services:\n  one:\n    image: vllm/vllm-openai:v0.9.2\n    environment:\n"
        "      - VLLM_USE_V1=0\n    command: --model Qwen/Qwen3-8B\n"
    )
    launch = read_launch("vllm", str(compose))
    assert launch.fields["version"] == "0.9.2"
    assert any("VLLM_USE_V1=0" in note for note in launch.notes)
    one = read_launch("vllm", "VLLM_USE_V1=1 vllm serve Qwen/Qwen3-8B")
    assert not any("VLLM_USE_V1" in note for note in one.notes)


def test_servers_behind_nginx_are_replicas() -> None:
    """Of a dense model; of a mixture a replica would have experts of its own."""
    pool = ("cat > lb.conf <<EOF\nhttp { upstream llm { server a:8000; server b:8000;\n"
            "server c:8000; } server { listen 80; } }\nEOF\n")  # fmt: skip
    assert read_launch("trtllm", pool + "trtllm-serve Qwen/Qwen3-8B --tp_size 2").fields["dp"] == 3
    assert read_launch("trtllm", TRTLLM + "--tp_size 2").fields["dp"] == 1
    with pytest.raises(InputError, match="3 servers, each with all experts"):
        read_launch("trtllm", f"{pool}trtllm-serve deepseek-ai/DeepSeek-V3 --tp_size 8")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("enable_balance: true\n  timeout_iters: 60", {"replica_passes": "apart", "polling": 60}),
        ("enable_balance: true", {"replica_passes": "apart", "polling": 50}),
        ("timeout_iters: 60", {"replica_passes": "waiting", "polling": 1}),
    ],
)
def test_prompts_wait_for_those_of_other_replicas(
    tmp_path: Path, options: str, said: dict[str, object]
) -> None:
    """As many passes as the balance of attention's replicas waits for, 50 unless told."""
    (tmp_path / "own.yaml").write_text(f"attention_dp_config:\n  {options}\n")
    script = tmp_path / "run.sh"
    line = TRTLLM + "--tp_size 4 --enable_attention_dp --config own.yaml\n"
    script.write_text(line)
    assert said.items() <= read_launch("trtllm", str(script)).fields.items()
    script.write_text(line.replace("--enable_attention_dp ", ""))
    assert read_launch("trtllm", str(script)).fields["polling"] == 1


def test_pieces_of_tensorrt_llm(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(
        "stream_interval: 10\ntorch_compile_config:\n  enable_piecewise_cuda_graph: true\n"
        "  capture_num_tokens: [1, 256, 4096]\n"
    )
    script = tmp_path / "run.sh"
    script.write_text(TRTLLM + "--config own.yaml\n")
    found = read_launch("trtllm", str(script))
    assert (found.fields["prompt_graphs"], found.unknown) == (4096, [])
    assert found.fields["front_end"] == "beside"
    assert read_launch("trtllm", TRTLLM + "--tp_size 4").fields["prompt_graphs"] == 0
