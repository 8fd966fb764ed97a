"""Forms that public files of late 2026 have: what each says, counted by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

import reckon
from predictor import catalog
from predictor.errors import InputError
from reckon.launch import read_launch
from reckon.launch.shell import read_script

TRAIN = "train.py --model_name_or_path Qwen/Qwen3-8B --per_device_train_batch_size 2"


@pytest.mark.parametrize(
    "found",
    [
        '$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)',
        "$(cd $(dirname $0) ; pwd)",
        '"$(cd "$(dirname "${BASH_SOURCE[0]}")/." >/dev/null && pwd)"',
        "`dirname $0`",
    ],
)
def test_a_script_finds_files_beside_it(tmp_path: Path, found: str) -> None:
    (tmp_path / "a.yaml").write_text("distributed_type: FSDP\nnum_processes: 4\n")
    script = tmp_path / "run.sh"
    script.write_text(f"D={found}\naccelerate launch --config_file $D/a.yaml {TRAIN}\n")
    fields = read_launch("trainer", str(script)).fields
    assert (fields["sharding"], fields["gpus"]) == ("fsdp", 4)


def test_a_configuration_may_lie_above_the_script(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "a.yaml").write_text("distributed_type: FSDP\n")
    (tmp_path / "scripts").mkdir()
    script = tmp_path / "scripts" / "run.sh"
    script.write_text(f"accelerate launch --config_file configs/a.yaml {TRAIN}\n")
    assert read_launch("trainer", str(script)).fields["sharding"] == "fsdp"
    script.write_text(f"accelerate launch --config_file configs/b.yaml {TRAIN}\n")
    with pytest.raises(InputError, match=r"configs/b\.yaml, accelerate's configuration that"):
        read_launch("trainer", str(script))


def test_a_loop_over_arguments_that_are_not_given_changes_nothing() -> None:
    script = read_script(
        ': "${C:=usual}"\nwhile [ $# -gt 0 ]; do\ncase "$1" in\n--c=*) C="${1#*=}" ;;\nesac\n'
        "shift\ndone\nD=$1\nrun --c $C --d $D\n"
    )
    assert script.commands[-1] == ["run", "--c", "usual", "--d", "$1"]


SIZES = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 512 "
    "--num-attention-heads 8 --seq-length 1024 --micro-batch-size 1 --global-batch-size 8 --bf16 "
)


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        ("--vocab-file x/vocab.txt", "masked words"),
        ("--tokenizer-type BertWordPieceCase --vocab-file v", "masked words"),
        ("--vocab-size 100 --experimental-attention-variant gated_delta_net", "other attention"),
        ("--vocab-size 100 --num-tokens-to-generate 30", "predict infer"),
        ("--vocab-size 100 --fp4-format e2m1 --fp4-recipe mxfp4", "mxfp4"),
    ],
)
def test_what_is_no_decoder_that_trains_is_refused_by_name(flags: str, what: str) -> None:
    with pytest.raises(InputError, match=what):
        read_launch("megatron", SIZES + flags)


def test_the_words_of_other_tokenizers_are_no_sign_of_an_encoder() -> None:
    line = SIZES + "--vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt"
    assert read_launch("megatron", line).model is not None


def test_a_program_that_generates_does_not_train() -> None:
    with pytest.raises(InputError, match=r"text_generation_ptq\.py"):
        read_launch("megatron", SIZES.replace("pretrain_gpt", "text_generation_ptq"))


def test_which_layers_have_no_window_as_a_pattern() -> None:
    window = SIZES + "--vocab-size 100 --window-size 128,0 --window-attn-skip-freq "
    model = read_launch("megatron", window + "'[1, 0, 1, 0]'").model
    assert model is not None
    assert (model.sliding_window, model.windowed_share) == (128, 0.5)
    with pytest.raises(InputError, match="0 or 1 for each of 4 layers"):
        read_launch("megatron", window + "'[1, 0, 1]'")


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ("finetuning_type: oft\nstage: sft\ndo_train: true\n", "OFT"),
        ("finetuning_type: freeze\nstage: sft\ndo_train: true\n", "few of the layers"),
        ("infer_backend: vllm\n", "generates"),
        ("export_dir: out\n", "joined"),
    ],
)
def test_files_of_llama_factory_that_train_otherwise_or_not(lines: str, what: str) -> None:
    text = f"model_name_or_path: Qwen/Qwen3-8B\ntemplate: qwen3\n{lines}"
    with pytest.raises(InputError, match=what):
        read_launch("trainer", text)


def test_options_of_vllm_by_dotted_names() -> None:
    line = "vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2 "
    dotted = line + "--speculative-config.method mtp --speculative-config.num_speculative_tokens 3"
    short = line + '-sc \'{"method": "mtp", "num_speculative_tokens": 3}\''
    for one in (dotted, short):
        launch = read_launch("vllm", one)
        assert launch.fields["drafted"] == 3
        assert not launch.unknown
    fused = line + "--compilation-config.pass_config.fuse_allreduce_rms true"
    assert read_launch("vllm", fused).fields["reductions"] == "joined"


def test_vllms_line_says_where_tables_of_ngrams_lie() -> None:
    line = "vllm serve deepseek-ai/DeepSeek-V4.1-Flash --tensor-parallel-size 4 "
    host = "--engram-config '{\"cpu_offload\": true}'"
    for said in (host, "--engram-config.cpu_offload true"):
        launch = read_launch("vllm", line + said)
        assert launch.fields["offload"] == "ngrams"
        assert not launch.unknown
    for said in ("", "--engram-config '{\"cpu_offload\": false}'"):
        assert "offload" not in read_launch("vllm", line + said).fields
    with pytest.raises(InputError, match="--engram-config cpu: expected JSON"):
        read_launch("vllm", line + "--engram-config cpu")


def test_what_the_name_says_counts_where_modelopt_leaves_it_to_the_checkpoint() -> None:
    line = "vllm serve nvidia/Qwen3-8B-{} --quantization modelopt"
    for word, kind in (("NVFP4", "nvfp4"), ("FP8", "fp8")):
        launch = read_launch("vllm", line.format(word))
        assert "precision" not in launch.fields
        assert launch.model is not None
        assert launch.model.quantization is not None
        assert launch.model.quantization.precision == kind
    assert read_launch("vllm", line.format("x").replace("-x", "")).fields["precision"] == "fp8"


PAGE = """
## Start

```bash
docker pull vllm/vllm-openai:latest
```

  ```bash
  vllm serve Qwen/Qwen3-8B \\
    --tensor-parallel-size 2
  ```

```bash
python -m sglang.launch_server --model-path Qwen/Qwen3-4B --tp 4
```

```bash
vllm serve Qwen/Qwen3-8B --tensor-parallel-size 8
```
"""


def test_the_first_line_of_a_page_that_starts_the_engine_is_read() -> None:
    launch = read_launch("vllm", PAGE)
    assert launch.fields["tp"] == 2
    assert any("2 launch lines in the page" in note for note in launch.notes)
    assert read_launch("sglang", PAGE).fields["tp"] == 4


def test_a_recipe_that_holds_its_page_as_a_text() -> None:
    indented = "\n".join(f"  {line}" for line in PAGE.splitlines())
    text = f"model:\n  model_id: Qwen/Qwen3-8B\n  base_args:\n  - --x\nguide: |\n{indented}\n"
    assert read_launch("vllm", text).fields["tp"] == 2


MAXTEXT = (
    "python3 -m maxtext.trainers.pre_train.train maxtext/configs/base.yml model_name=llama3.1-70b "
    "per_device_batch_size=2 max_target_length=8192 ici_fsdp_parallelism=-1 remat_policy=full"
)


@pytest.mark.parametrize(("kind", "axes", "each"), [("tpu7x", "4x4x8", 2), ("v5p", "4x4x8", 1)])
def test_a_job_of_kubernetes_and_the_devices_of_a_chip(kind: str, axes: str, each: int) -> None:
    """A chip of TPU7x is two devices of JAX: batches are per device, accelerators are chips."""
    job = (
        "apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nspec:\n  replicatedJobs:\n"
        "  - name: slice\n    replicas: 1\n    template:\n      spec:\n        nodeSelector:\n"
        f"          cloud.google.com/gke-tpu-accelerator: {kind}\n"
        f"          cloud.google.com/gke-tpu-topology: {axes}\n        containers:\n"
        f"        - command: [bash, -c, 'echo maxtext; ({MAXTEXT}) & wait']\n"
    )
    fields = read_launch("maxtext", job).fields
    assert (fields["gpus"], fields["micro_batch"]) == (128, 2 * each)
    assert fields["global_batch"] == 128 * 2 * each
    assert (fields["dp"], fields["sharding"]) == (128, "fsdp")


def test_products_in_int8_are_read_and_take_their_own_rate() -> None:
    """MaxText's `quantization=int8` (AQT): all three products of a linear layer; a TPU v5e does
    twice as many of them as in bf16, and what is not a linear layer stays as it is."""
    line = f"xpk workload create --tpu-type=v5litepod-256 --command '{MAXTEXT} quantization=int8'"
    assert read_launch("maxtext", line).fields["precision"] == "int8"
    plan = {"gpus": 256, "global_batch": 512, "seq_len": 2048}
    wide, narrow = (
        {one.name: one for one in reckon.predict_train("llama2-7b", "tpu-v5e-256", own).operators}
        for own in ({**plan, "precision": one} for one in ("bf16", "int8"))
    )
    assert set(wide) == set(narrow)
    products = {name for name, one in wide.items() if one.op == "gemm" and "head" not in name}
    assert {"mlp.up", "mlp.up.dgrad", "mlp.up.wgrad", "attention.qkv"} <= products
    for name, before in wide.items():
        share = narrow[name].time_s / before.time_s
        assert 0.5 <= share < 1.0 if name in products else share == 1.0, name
    with pytest.raises(InputError, match="V100-SXM2-32GB has no int8 rate"):
        reckon.predict_train(
            "llama2-7b", "V100-SXM2-32GB", {**plan, "gpus": 8, "precision": "int8"}
        )


def test_axes_of_a_slice_count_devices() -> None:
    asked = "xpk workload create --tpu-type=tpu7x-2x2x2 --command '{}'"
    mesh = " ici_fsdp_parallelism=8 ici_data_parallelism=2"
    line = asked.format(MAXTEXT.replace(" ici_fsdp_parallelism=-1", mesh))
    fields = read_launch("maxtext", line).fields
    assert (fields["gpus"], fields["dp"], fields["dp_shard"]) == (8, 8, 4)


def test_a_size_is_never_joined_with_the_family_before_it() -> None:
    assert catalog.read_model_name("gpt3-6b") is None
    for name, row in (("gpt-3.6b", "megatron-3.6b"), ("qwen2-0-5b", "qwen2-0.5b"),
                      ("llama3_1_70b", "llama3.1-70b")):  # fmt: skip
        found = catalog.read_model_name(name)
        assert found is not None
        assert found.row == row


def test_variables_that_slurm_sets() -> None:
    script = read_script(
        "#SBATCH --nodes=4\n#SBATCH --gpus-per-node=gh:4\n#SBATCH --ntasks-per-node 2\n"
        "run --tp $SLURM_GPUS_PER_NODE --n $SLURM_NNODES --p $SLURM_NPROCS --x $SLURM_JOB_ID\n"
    )
    assert script.commands[-1] == "run --tp 4 --n 4 --p 8 --x $SLURM_JOB_ID".split()


@pytest.mark.parametrize(("name", "held"), [("adam", None), ("sgd", 8), ("muon", 8),
                                            ("ademamix", 16)])  # fmt: skip
def test_moments_of_other_optimizers(name: str, held: int | None) -> None:
    """Beside an fp32 copy: none, one or three moments of four bytes instead of Adam's two."""
    fields = read_launch("megatron", f"{SIZES} --vocab-size 100 --optimizer {name}").fields
    assert fields.get("optimizer_bytes") == held


AXOLOTL = "base_model: Qwen/Qwen3-8B\nmicro_batch_size: 1\nbf16: true\nfsdp_version: 2\n"


def test_what_stands_within_the_keys_of_fsdp() -> None:
    own = "fsdp_config: {activation_checkpointing: true, reshard_after_forward: false}\n"
    fields = read_launch("trainer", AXOLOTL + own).fields
    assert (fields["recompute"], fields["sharding"]) == ("full", "zero2")


def test_accelerators_of_several_dimensions() -> None:
    sizes = "dp_replicate_size: 2\ndp_shard_size: 2\ntensor_parallel_size: 4\n"
    fields = read_launch("trainer", AXOLOTL + sizes).fields
    assert (fields["gpus"], fields["dp"], fields["tp"]) == (16, 4, 4)


def test_adapters_beside_attention_alone() -> None:
    own = "adapter: lora\nlora_r: 8\nlora_target_modules: [q_proj, k_proj, v_proj, o_proj]\n"
    assert read_launch("trainer", AXOLOTL + own).fields["trained"] == "lora_qkv"
    assert read_launch("trainer", AXOLOTL + own.replace("o_", "up_")).fields["trained"] == "lora"


@pytest.mark.parametrize(
    ("more", "mixtures", "top", "shared"),
    [("", 2, 1, 0), ("--expert-interval 1 --topk 2", 4, 2, 0), ("--mlp-type residual", 2, 1, 2048)],
)
def test_experts_of_megatron_deepspeed(more: str, mixtures: int, top: int, shared: int) -> None:
    """One expert a token in every second layer, unless told (Megatron-DeepSpeed, arguments.py)."""
    line = f"{SIZES} --vocab-size 128 --num-experts 8 --moe-expert-parallel-size 8 --deepspeed "
    model = read_launch("megatron", line + more).model
    assert model is not None
    expert = 2 * 512 * 2048
    blocks = (4 - mixtures) * expert + mixtures * (8 * expert + 2 * 512 * shared)
    others = model.parameters - blocks
    assert 0 < others < 1.2 * (4 * 4 * 512**2 + 128 * 512 + 1024 * 512) + 2e5
    assert (model.top_k, model.shared_width) == (top, shared)


def test_what_is_run_counts_and_not_what_is_printed() -> None:
    opts = SIZES.partition("pretrain_gpt.py ")[2] + "--vocab-size 100"
    script = (
        f'OPTS="{opts}"\nRUN="deepspeed --num_nodes 1 --num_gpus 8 pretrain_gpt.py $OPTS"\n'
        "echo $OPTS\necho $RUN\neval $RUN\n"
    )
    assert read_launch("megatron", script).fields["gpus"] == 8


PRIMUS = (
    "modules:\n  trainer:\n    framework: megatron\n    model: llama2_70B.yaml\n    overrides:\n"
    "      micro_batch_size: 1\n      global_batch_size: 8\n      seq_length: 4096\n"
)


@pytest.mark.parametrize(
    ("section", "trained", "rank"),
    [
        ("{enabled: true, dim: 16, target_modules: [linear_qkv, linear_proj]}", "lora_qkv", 16),
        ("{enabled: true, dim: 8, target_modules: [linear_qkv, linear_fc1]}", "lora", 8),
        ("{enabled: false}", None, None),
    ],
)
def test_adapters_of_primus(section: str, trained: str | None, rank: int | None) -> None:
    launch = read_launch("megatron", f"{PRIMUS}      lora: {section}\n")
    assert (launch.fields.get("trained"), launch.fields.get("lora_rank")) == (trained, rank)
    assert not [name for name in launch.unknown if name in ("--enabled", "--dim")]


def test_which_layers_run_again() -> None:
    """Twenty of eighty layers by their numbers; of a block of none, none."""
    full = "      recompute_granularity: full\n"
    ids = ",".join(map(str, range(20)))
    fields = read_launch("megatron", f'{PRIMUS}{full}      recompute_layer_ids: "{ids}"\n').fields
    assert (fields["recompute"], fields["recompute_share"]) == ("full", 0.25)
    none = f"{PRIMUS}{full}      recompute_method: block\n      recompute_num_layers: 0\n"
    assert read_launch("megatron", none).fields["recompute"] == "none"


@pytest.mark.parametrize(
    "what",
    ["--position-embedding-type deepseek4", "--position-embedding-type deepseek4_yarn"],
)
def test_compressed_keys_are_refused_by_name(what: str) -> None:
    with pytest.raises(InputError, match="DeepSeek-V4"):
        read_launch("megatron", f"{SIZES} --vocab-size 100 {what}")


REGISTRY = """
from . import model_registry


def llama3_70b() -> Trainer.Config:
    spec = model_registry("70B", converters=[Float8LinearConverter.Config(filter_fqns=["head"])])
    return Trainer.Config(
        model_spec=spec,
        training=TrainingConfig(
            num_tokens_per_microbatch_per_dp_rank=2 * 8192, max_context_length=8192, steps=10
        ),
        parallelism=ParallelismConfig(tensor_parallel_degree=8),
        activation_checkpoint=FullAC.Config(),
        compile=CompileConfig(enable=True, enable_async_tensor_parallel=True),
    )


def llama3_70b_wide() -> Trainer.Config:
    config = llama3_70b()
    config.parallelism.tensor_parallel_degree = 4
    config.training.num_tokens_per_train_step = 64 * 8192
    config.activation_checkpoint = None
    return config
"""


def test_a_registry_of_torchtitan(tmp_path: Path) -> None:
    """Its functions as they stand, and by a command; two sequences of 8,192 in 16,384 tokens."""
    place = tmp_path / "torchtitan" / "models" / "llama3" / "config_registry.py"
    place.parent.mkdir(parents=True)
    place.write_text(REGISTRY)
    launch = read_launch("torchtitan", f"{place}:llama3_70b")
    assert launch.model is not None
    assert launch.model.name == "llama3-70b"
    wanted = {"tp": 8, "micro_batch": 2, "seq_len": 8192, "precision": "fp8", "recompute": "full",
              "tp_overlap": True, "fused": True}  # fmt: skip
    assert {name: launch.fields[name] for name in wanted} == wanted
    assert not launch.unknown
    script = tmp_path / "run.sh"
    script.write_text(
        "torchrun --nproc_per_node 8 --nnodes 4 -m torchtitan.train --module llama3 "
        "--config llama3_70b_wide\n"
    )
    fields = read_launch("torchtitan", str(script)).fields
    assert (fields["gpus"], fields["tp"], fields["global_batch"]) == (32, 4, 64)
    assert fields["recompute"] == "none"
    with pytest.raises(InputError, match="did you mean 'llama3_70b'"):
        read_launch("torchtitan", f"{place}:llama3_70")


def test_a_registry_that_is_not_there_is_told() -> None:
    line = "torchrun -m torchtitan.train --module llama3 --config llama3_8b --training.steps 10"
    launch = read_launch("torchtitan", line)
    assert launch.model is not None
    assert launch.model.name in ("llama3-8b", "llama3.1-8b")
    assert any("is not there" in note for note in launch.notes)


def test_the_cache_of_deepseek_in_vllm() -> None:
    line = "vllm serve deepseek-ai/DeepSeek-V3.2 --kv-cache-dtype fp8_ds_mla"
    assert read_launch("vllm", line).fields["kv_precision"] == "fp8"
