"""Two thousand hostile inputs, seeded, over every reader: each is read or refused in a line, none
ends in a traceback, hangs, or fills the memory."""

from __future__ import annotations

import gzip
import json
import random
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from calibration.sources.devices import accelerator_of
from calibration.sources.found import Stated
from calibration.sources.reading import read_table
from predictor import catalog
from predictor.catalog import ServingPlanSpec, TrainingPlanSpec, load, parse, read_given
from predictor.catalog.traces import read_trace
from predictor.errors import InputError
from predictor.files import MOST_UNPACKED
from predictor.models.huggingface import from_config
from reckon.console.cli import main
from reckon.explore import read_grid as read_exploration
from reckon.launch import DIALECTS, read_launch
from reckon.serve.bodies import Body, checked
from reckon.sweeping.grid import read_grid as read_sweep
from reckon.verbs.importing import FORMATS

SEED, WHOLE = 20261122, 2000
SECONDS, GROWTH = 10, 2 * 2**30

MEGATRON = (
    "N=2\nARGS=( --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 128\n"
    "  --micro-batch-size 1 --global-batch-size 8 --vocab-size 1000 --bf16 )\n"
    'if [ "$N" == "2" ]; then ARGS+=(--tensor-model-parallel-size $N); fi\n'
    "torchrun --nnodes 1 --nproc-per-node 8 pretrain_gpt.py ${ARGS[@]} --swiglu\n"
)
NEMO = (
    "trainer: {num_nodes: 1, devices: 8, precision: bf16, max_steps: 10}\nmodel:\n  num_layers: 4\n"
    "  hidden_size: 64\n  ffn_hidden_size: ${multiply:4, ${.hidden_size}}\n"
    "  num_attention_heads: 4\n  global_batch_size: 8\n  encoder_seq_length: 128\n"
    "  tokenizer: {library: megatron, type: GPT2BPETokenizer}\n"
)
RECIPE = (
    "def a_config(n=2):\n    cfg = common()\n"
    '    cfg.model = AutoBridge.from_hf_pretrained("Qwen/Qwen3-8B").get_model_config()\n'
    "    cfg.model.tensor_model_parallel_size = 2\n    cfg.train.global_batch_size = 64\n"
    "    return a_config(n=3)\n"
)
TITAN = (
    '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\nseq_len = 8192\n'
    "[parallelism]\ntensor_parallel_degree = 2\n"
)
REGISTRY = (
    "# recipe: a\ndef b():\n    return T.Config(training=Training(max_context_length=2 * 64))\n"
    "def a():\n    config = b()\n    config.parallelism.tensor_parallel_degree = 2\n"
    '    config.model_spec = model_registry("8B", converters=[MXFP8LinearConverter.Config()])\n'
    "    return config\n"
)
DEEPSPEED = '{"train_batch_size": 8, "zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}'
VLLM = "vllm serve meta-llama/Llama-3.1-8B --tensor-parallel-size 2 --max-num-seqs 8 --dtype auto"
MANIFEST = (
    "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - image: vllm/vllm-openai\n"
    '    args: ["--model=$(M)", "--tensor-parallel-size=2"]\n    env: [{name: M, value: gpt2}]\n'
)
PAGE = f"## Serve\n\n```bash\n{VLLM}\n```\n\n  ```sh\n  vllm serve gpt2 -sc.method mtp\n  ```\n"
JOB = (
    "apiVersion: v1\nkind: JobSet\nspec:\n  nodeSelector: {cloud.google.com/gke-tpu-accelerator: "
    "tpu7x, cloud.google.com/gke-tpu-topology: 2x2x1}\n  containers:\n  - command: [bash, -c, "
    "'python3 -m maxtext.train base.yml model_name=llama3-8b per_device_batch_size=1']\n"
)
SGLANG = "python -m sglang.launch_server --model-path Qwen/Qwen3-8B-FP8 --tp 2 --dp-size 1"
TRTLLM = "trtllm-serve Qwen/Qwen3-8B --tp_size 2 --max_batch_size 8"
TGI = "text-generation-launcher --model-id Qwen/Qwen3-8B --num-shard 2 --quantize fp8 -p 80"
LMDEPLOY = "lmdeploy serve api_server Qwen/Qwen3-8B --tp 2 --cache-max-entry-count 0.5 --dp=1"
LLAMA = "llama-server -hf unsloth/Qwen3-8B-GGUF:Q4_K_M -ngl all --parallel 4 -c 8192 -sm row"
TRAINER = (
    "base_model: Qwen/Qwen3-8B\nsequence_len: 4096\nmicro_batch_size: 1\nadapter: qlora\n"
    "gradient_accumulation_steps: 4\nbf16: auto\nlora_r: 8\nfsdp: [full_shard, auto_wrap]\n"
    "fsdp_config: {fsdp_offload_params: true}\ngradient_checkpointing: unsloth\n"
)
MAXTEXT = (
    'M="python3 -m MaxText.train base.yml model_name=default per_device_batch_size=2 '
    "ici_fsdp_parallelism=-1 ici_tensor_parallelism=2 remat_policy=custom query_proj=offload "
    'max_target_length=128 global_parameter_scale=8 quantization=int8 steps=3 opt_type=sgd"\n'
    'xpk workload create --tpu-type=v5p-8 --num-slices=2 --command="${M}"\n'
)
NANOTRON = (
    "model: {dtype: bfloat16, model_config: {num_hidden_layers: 2, hidden_size: 64, "
    "num_attention_heads: 4, intermediate_size: 128, vocab_size: 100,\n"
    "  moe_config: {num_experts: 4, layers: [-1]}}}\n"
    "optimizer: {zero_stage: 1, clip_grad: 1.0, accumulate_grad_in_fp32: true}\n"
    "parallelism: {dp: 2, pp: 2, tp: 2, pp_engine: 1f1b, tp_mode: REDUCE_SCATTER}\n"
    "tokens: {sequence_length: 128, micro_batch_size: 1, batch_accumulation_per_replica: 4}\n"
)
AUTOMODEL = (
    "step_scheduler: {global_batch_size: 64, local_batch_size: 4}\n"
    "distributed: {strategy: fsdp2, tp_size: 2, pp_size: 2, activation_checkpointing: true,\n"
    "  pipeline: {pp_schedule: interleaved1f1b, pp_microbatch_size: 1, layers_per_stage: 4}}\n"
    "model: {pretrained_model_name_or_path: meta-llama/Llama-3.1-8B, torch_dtype: bf16}\n"
    "peft: {dim: 8}\ndataset: {seq_len: 4096}\n"
)
FOUNDRY = (
    "compute: {gpus: 8}\nparameters:\n  max_seq_len: 128\n  global_train_batch_size: 16\n"
    "  model: {name: mpt_causal_lm, d_model: 64, n_heads: 4, n_layers: 2, vocab_size: 100,\n"
    "    max_seq_len: ${max_seq_len}, attn_config: {attn_impl: flash, kv_n_heads: 2}}\n"
    "  device_train_microbatch_size: auto\n  max_duration: 10ba\n  precision: amp_bf16\n"
    "  fsdp_config: {sharding_strategy: FULL_SHARD, activation_checkpointing: true}\n"
)
LINES = {
    "megatron": (MEGATRON,), "nemo": (NEMO, RECIPE), "torchtitan": (TITAN, REGISTRY),
    "deepspeed": (DEEPSPEED,), "vllm": (VLLM, MANIFEST, PAGE), "sglang": (SGLANG,),
    "trtllm": (TRTLLM,), "trainer": (TRAINER,), "maxtext": (MAXTEXT, JOB), "nanotron": (NANOTRON,),
    "automodel": (AUTOMODEL,), "llm-foundry": (FOUNDRY,),
    "tgi": (TGI,), "lmdeploy": (LMDEPLOY,), "llama-cpp": (LLAMA,),
}  # fmt: skip

CONFIG: dict[str, Any] = {
    "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 1000,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}  # fmt: skip
SYSTEM = {"name": "x", "accelerator": "h100", "accelerators_per_node": 8,
          "tiers": [{"link": "nvlink4", "size": 8, "bandwidth_gbs": 450},
                    {"link": "infiniband", "bandwidth_gbs": 50}]}  # fmt: skip
PLAN = {"model": "llama3-8b", "system": "dgx-h100", "gpus": 8, "tp": 2, "global_batch": 8,
        "seq_len": 128, "recompute": "full"}  # fmt: skip
SERVED = {"model": "llama3-8b", "system": "dgx-h100", "tp": 2, "batch": 4, "input_len": 16,
          "output_len": 4, "precision": "fp8"}  # fmt: skip
TRACE = json.dumps({"deviceProperties": [{"name": "NVIDIA H100 80GB HBM3"}], "traceEvents": [
    {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 2, "args": {"correlation": 1}},
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 5,
     "args": {"External id": 1, "Input Dims": [[8, 8], [8, 8]],
              "Input type": ["c10::BFloat16", "c10::BFloat16"]}}]})  # fmt: skip
NCCL = (
    "# nThread 1 nGpus 8 minBytes 8\n#       size   count  type  redop  root  time  algbw  busbw\n"
    "     1048576    262144     float     sum      -1    50.00   20.97   36.70      0\n"
)

HOSTILE = (
    "\x00", "9" * 400, "-1", "1e999", "nan", "${", "$((", "`", "'", '"', "{{", "}}", "[" * 200,
    "{" * 200, "é\u202e", "\ud7ff", "../../etc/passwd", "a" * 5000, "\n\n", "\t", "<<EOF\n",
    "${x:-${y:-${z}}}", "!!python/object:os.system", "&a [*a]", "%s%n", "0x10", "--", "=", "\\",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1e308, 10**30, "", "x" * 300, [], {}, [1, [2]], float("nan"),
    float("inf"), "8..1", "..", "1,2,", {"a": {"b": []}}, "\x00", 0.5,
)  # fmt: skip


def torn(rng: random.Random, text: str) -> str:
    """A text with a few things done to it that no reader likes."""
    for _ in range(rng.randint(1, 4)):
        at, to = sorted((rng.randrange(len(text) + 1), rng.randrange(len(text) + 1)))
        to = min(to, at + 40)
        what = rng.randrange(5)
        if what == 0:
            text = text[:at] + rng.choice(HOSTILE) + text[at:]
        elif what == 1:
            text = text[:at] + text[to:]
        elif what == 2:
            text = text[:to] + text[at:to] * 3 + text[to:]
        elif what == 3:
            text = text[:at] + chr(rng.randrange(1, 255)) + text[at + 1 :]
        else:
            text = text[:at]
    return text


def bent(rng: random.Random, content: dict[str, Any]) -> dict[str, Any]:
    """A mapping with a few values replaced, taken out or added."""
    found = json.loads(json.dumps(content))
    for _ in range(rng.randint(1, 3)):
        place = found
        while True:
            key = rng.choice([*place, "more"]) if place else "more"
            if isinstance(place.get(key), dict) and rng.random() < 0.6:
                place = place[key]
                continue
            break
        if rng.random() < 0.2:
            place.pop(key, None)
        else:
            place[key] = rng.choice(VALUES)
    return found


Reader = Callable[[random.Random], object]


def readers(folder: Path) -> list[tuple[int, str, Reader]]:
    """How many inputs, of what, and what reads one."""
    run = load("kernels-only").run
    assert run is not None

    def line(name: str, texts: tuple[str, ...]) -> Reader:
        return lambda rng: read_launch(name, torn(rng, rng.choice(texts)) + "\n")

    def file(suffix: str, text: str, read: Callable[[Path], object]) -> Reader:
        def one(rng: random.Random) -> object:
            path = folder / f"input{suffix}"
            path.write_bytes(torn(rng, text).encode("utf-8", "surrogatepass"))
            return read(path)

        return one

    def name(rng: random.Random) -> object:
        kind = rng.choice((catalog.model, catalog.system, catalog.accelerator))
        own = rng.choice([*catalog.rows("models"), *catalog.rows("systems"), "8xH100", "org/M-FP8"])
        return kind(torn(rng, own))

    def command(rng: random.Random) -> int:
        flags = {f"--{k.replace('_', '-')}": v for k, v in PLAN.items()}
        flags[rng.choice([*flags])] = rng.choice([*HOSTILE[:12], "1,2,x", "0"])
        words = ["predict", "train", *(str(w) for pair in flags.items() for w in pair)]
        status = main([*words, "--calibration", "kernels-only"])
        assert status in (0, 2)
        return status

    given: list[tuple[int, str, Reader]] = [
        (110, f"--from-{dialect}", line(dialect, texts)) for dialect, texts in LINES.items()
    ]
    given += [
        (200, "names", name),
        (160, "config.json", lambda rng: catalog.model(bent(rng, CONFIG))),
        (60, "a nested config", lambda rng: from_config(bent(rng, {"text_config": CONFIG}), "c")),
        (120, "system", lambda rng: catalog.system(bent(rng, SYSTEM))),
        (150, "training plan", lambda rng: parse(TrainingPlanSpec, bent(rng, PLAN), "p")),
        (100, "serving plan", lambda rng: parse(ServingPlanSpec, bent(rng, SERVED), "p")),
        (80, "bounds", lambda rng: read_given(bent(rng, PLAN))),
        (60, "grid", lambda rng: read_sweep(bent(rng, PLAN), "kernels-only", "g")),
        (60, "body", lambda rng: checked(Body(model="a", system="b", plan=bent(rng, PLAN)))),
        (60, "model.yaml", file(".yaml", json.dumps(CONFIG), lambda p: catalog.model(str(p)))),
        (50, "model.json", file(".json", json.dumps(CONFIG), lambda p: catalog.model(str(p)))),
        (40, "exploration", file(".yaml", json.dumps({"model": "llama3-8b", "plan": PLAN}),
                                 read_exploration)),
        (60, "trace", file(".json", TRACE, lambda p: FORMATS["kineto"].read(p, STATED))),
        (40, "nccl-tests", file(".txt", NCCL, lambda p: FORMATS["nccl-tests"].read(p, STATED))),
        (30, "device", lambda rng: accelerator_of(torn(rng, DEVICE), STATED, "t")),
        (60, "command line", command),
    ]  # fmt: skip
    return given


DEVICE = "NVIDIA H100 80GB HBM3"
STATED = Stated(accelerator="H100-SXM5-80GB", op=None)


class _TooLong(Exception):
    """More than `SECONDS`."""


@contextmanager
def _limited() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_hostile_inputs_are_read_or_refused_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from pydantic import ValidationError

    rng = random.Random(SEED)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wrong: list[str] = []
    done = refused = 0
    for count, what, read in readers(tmp_path):
        for number in range(count):
            done += 1
            try:
                with _limited():
                    read(rng)
            except InputError as error:
                refused += 1
                if len(str(error).splitlines()) > 1:
                    wrong.append(f"{what} {number}: several lines: {error!s:.150}")
            except ValidationError:
                refused += 1
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                wrong.append(f"{what} {number}: {type(error).__name__}: {error!s:.150}")
    capsys.readouterr()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - grown) * 1024
    assert wrong == []
    assert done >= WHOLE
    assert refused > done / 4
    assert grown < GROWTH


def test_every_dialect_is_among_them() -> None:
    assert set(LINES) == set(DIALECTS)


@pytest.mark.parametrize("name", ["t.csv.gz", "t.jsonl.gz"])
def test_a_file_that_unpacks_to_nothing_but_blanks_is_refused(tmp_path: Path, name: str) -> None:
    """A thousandfold of what is packed is no table; it is not read to its end."""
    path = tmp_path / name
    path.write_bytes(gzip.compress(b" " * (MOST_UNPACKED + 2), 9))
    reader = read_table if name.endswith("csv.gz") else read_trace
    with pytest.raises(InputError, match="unpacks to more than 64 MiB"):
        reader(path)
