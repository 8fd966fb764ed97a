"""Megatron-LM: the arguments of `pretrain_gpt.py`, as a command or as a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reckon.launch.dialect import Dialect, Source
from reckon.launch.foreign import foreign
from reckon.launch.interpolation import loaded
from reckon.launch.launcher import NODES, PER_NODE, command, rendered
from reckon.launch.megatron_core import from_core
from reckon.launch.megatron_deepspeed import translated
from reckon.launch.megatron_model import MODEL
from reckon.launch.megatron_plan import FLAGS, PLAN
from reckon.launch.neox import from_neox, is_neox
from reckon.launch.primus import read_job
from reckon.launch.repository import HINTS
from reckon.launch.structured import flatten
from reckon.launch.table import Derived, Facts, Flags, truth, whole_number
from reckon.launch.tokenizers import vocabulary

IGNORED = (
    "--lr", "--min-lr", "--adam", "--weight-decay", "--start-weight-decay", "--end-weight-decay",
    "--init-method", "--seed", "--optimizer", "--rampup-batch-size", "--loss-scale",
    "--initial-loss-scale", "--data-", "--split", "--train-data", "--valid-data", "--test-data",
    "--vocab-file", "--merge-file", "--tokenizer", "--tiktoken", "--mock-data", "--dataloader",
    "--num-workers", "--no-create-attention-mask", "--no-mmap", "--num-dataset",
    "--save", "--load", "--ckpt", "--no-load", "--no-save", "--dist-ckpt", "--async-save",
    "--use-dist-ckpt", "--auto-detect-ckpt", "--finetune", "--pretrained",
    "--log", "--timing", "--tensorboard", "--wandb", "--eval", "--exit", "--profile",
    "--manual-gc", "--distributed-", "--master", "--node-rank", "--rdzv", "--local-rank",
    "--use-mcore-models", "--norm-epsilon", "--rotary", "--rope", "--use-rope", "--no-rope-freq",
    "--no-position-embedding", "--apply-layernorm-1p", "--qk-layernorm", "--qk-norm",
    "--attention-softmax-in-fp32", "--no-masked-softmax-fusion", "--transformer-impl",
    "--fp8-amax", "--fp8-margin", "--fp8-interval", "--moe-router-load-balancing-type",
    "--moe-aux-loss", "--moe-z-loss", "--moe-router-score", "--moe-router-bias",
    "--moe-router-enable", "--moe-router-dtype", "--moe-router-pre", "--moe-router-topk-scaling",
    "--mtp-loss", "--test-mode",
    "--override-opt_param", "--override-opt-param", "--spec", "--loss", "--no-gradient",
    "--ddp-bucket", "--enable-experimental", "--mscale", "--original-max", "--beta",
    "--hysteresis", "--use-persistent-ckpt", "--use-checkpoint-", "--no-use-tokenizer",
    "--inference",
    "--max-tokens-to-oom", "--top-k", "--top-p", "--temperature", "--num-tokens-to-generate",
    "--output-path", "--return-log-probs", "--prompt", "--incoming-requests", "--task", "--epochs",
    "--rerun-mode", "--no-ckpt", "--kill-switch", "--abort-on", "--valid-weighted",
    "--train-weighted", "--test-weighted", "--norm-target-loss", "--codecarbon", "--reset-",
    "--universal-checkpoint", "--moe-loss-coeff", "--analyzing", "--sample-", "--num-samples",
    "--answer-file", "--guess-file", "--genfile", "--out-seq-length", "--no-record-throughput",
    "--no-check-for-nan", "--DDP-impl", "--skip-train", "--attention-softmax",
    "--return-data-index",
    "--moe-grouped-gemm", "--moe-permute-fusion", "--use-mpi", "--rank", "--world-size",
    "--dist-url", "--handler-name", "--no-shared-storage", "--stage", "--is-instruction-dataset",
    "--enable-hf2mg", "--model-type-hf", "--ai-framework", "--use-z-loss", "--fim-",
    "--moe-per-layer-logging", "--moe-loss-weight", "--job-name", "--structured-logs",
    "--attention-mask-type", "--use-fused-swiglu", "--use-fused-rmsnorm", "--use-fused-rotary",
    "--main-tokenizer-type", "--patch-tokenizer-type", "--norm-topk-prob", "--seq-aux",
    "--eod-mask-loss", "--valid-num-workers",
    "--no-query-key-layer-scaling", "--apply-query-key", "--deepspeed", "--make-sentencepiece",
)  # fmt: skip
"""Beginnings of flags that say nothing of speed or memory, or say what is assumed in any case:
grouped products of experts, fused norms, activations and rotations."""


def _render(flags: Flags, facts: Facts) -> str:
    head = f"torchrun --nproc-per-node {flags[PER_NODE]} --nnodes {flags[NODES]} pretrain_gpt.py"
    return rendered(head, flags)


def canonical(flags: dict[str, Any]) -> Flags:
    """Flags with dashes for underscores."""
    return {f if f.startswith("@") else f.replace("_", "-"): v for f, v in flags.items()}


def _flag(key: str) -> str:
    """The flag that a key of a configuration is named after."""
    return "--" + key.rsplit(".", 1)[-1].replace("_", "-")


ARGUMENTS = "MODEL_ARGS"
"""Section of Megatron-LM's own tests that holds the arguments; others are of the test."""


RANK, TARGETS = "@lora-rank", "@lora-targets"
"""What Primus' section of adapters says, beside the flags."""

ATTENTION = {"linear_qkv", "linear_proj", "linear_q", "linear_kv", "linear_q_proj"}
"""Projections of attention, as Megatron Core names them."""


def _adapters(section: dict[str, Any]) -> Flags:
    """Low-rank adapters of Primus' fine-tuning (`lora`: enabled, dim, target_modules)."""
    if not truth("lora.enabled", section.get("enabled", True)):
        return {}
    targets = section.get("target_modules") or ()
    few = bool(targets) and set(map(str, targets)) <= ATTENTION
    return {RANK: section.get("dim", 32), TARGETS: "attention" if few else "all"}


def _adapters_means(flags: Flags, facts: Facts) -> Facts:
    if RANK not in flags:
        return {}
    kind = "lora_qkv" if flags.get(TARGETS) == "attention" else "lora"
    return {"trained": kind, "lora_rank": whole_number("lora.dim", flags[RANK])}


ADAPTERS = Derived((RANK, TARGETS), lambda facts: {}, _adapters_means)
"""Read of Primus' configurations, never written."""


def _parse(text: str, folder: Path) -> Source:
    mapping = loaded(text)
    if mapping is not None and is_neox(mapping):
        source = Source(from_neox(flatten(mapping)))
    elif mapping is not None:
        job = read_job(mapping, "megatron")
        mapping = mapping if job is None else job.settings
        own = mapping.get(ARGUMENTS)
        named = {"@repository": job.model} if job and "num_layers" not in mapping else {}
        if job and isinstance(mapping.get("lora"), dict):
            named |= _adapters(mapping["lora"])
            mapping = {key: value for key, value in mapping.items() if key != "lora"}
        flags = from_core(flatten(own if isinstance(own, dict) else mapping)).flags
        source = Source({f if f[0] in "-@" else _flag(f): v for f, v in flags.items()} | named)
    else:
        _, launcher, said, notes = command(text, FLAGS, folder)
        source = Source({**launcher, **canonical(said)}, notes)
    return completed(source, folder)


def completed(source: Source, folder: Path) -> Source:
    """Flags under today's names, with the vocabulary that the tokenizer means."""
    flags, notes = translated(source.flags)
    named = str(flags.get("--bridge-hf-model", "")).rstrip("/").rsplit("/", 1)[-1]
    if named and not named.startswith("$"):  # whose dimensions count
        flags["@repository"] = named
    if not {"--vocab-size", "--padded-vocab-size", "@repository"} & set(flags):
        found = vocabulary(flags, folder)
        if found is not None:
            flags["--vocab-size"] = found[0]
            notes.append(found[1])
    return Source(flags, [*source.notes, *notes])


MEGATRON = Dialect(
    name="megatron",
    framework="megatron-lm",
    model=(*HINTS, *MODEL),
    entries=(*PLAN, ADAPTERS),
    ignored=IGNORED,
    render=_render,
    parse=_parse,
    foreign=foreign,
)
