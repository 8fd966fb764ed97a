"""What `accelerate launch` says of sharding before the program's own arguments: by its options, its
configuration file, or the DeepSpeed configuration that either names (accelerate, commands/launch.py
and utils/dataclasses.py: `DeepSpeedPlugin`, `FullyShardedDataParallelPlugin`; from memory)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reckon.launch.launcher import PROCESSES, named_file, named_text, program
from reckon.launch.shell import Script, options
from reckon.launch.structured import flatten, read_mapping_text
from reckon.launch.table import Flags, truth

USUAL_STAGE = 2
"""Of DeepSpeed where nothing says one (`DeepSpeedPlugin.zero_stage`)."""


def launcher_sharding(script: Script, folder: Path) -> Flags:
    """Keys of `TrainingArguments` for what the launcher of a script's commands says; none where no
    command is accelerate's.

    folder  that the script is from, for files that it names

    Raises InputError for a configuration that it names and that cannot be read.
    """
    for words in script.commands:
        before, _ = program(words)
        if any(word.rsplit("/", 1)[-1] in ("accelerate", "accelerate-launch") for word in before):
            return _meant(_said(before, script, folder), script, folder)
    return {}


def _told(config: str) -> dict[str, Any]:
    """What the name of a configuration file that is not there tells, as TRL's do (examples/
    accelerate_configs: deepspeed_zero3.yaml, fsdp2.yaml, multi_gpu.yaml)."""
    name = Path(config).stem.lower()
    if match := re.search(r"zero_?([0-3])", name):
        return {"distributed_type": "DEEPSPEED", "zero_stage": int(match[1])}
    if "fsdp" in name:
        return {"distributed_type": "FSDP"}
    return {"distributed_type": "MULTI_GPU"} if name in ("multi_gpu", "ddp") else {}


def _said(words: list[str], script: Script, folder: Path) -> dict[str, Any]:
    """Options by their names, those of a configuration file among them."""
    own = {name.lstrip("-").replace("-", "_"): value for name, value in options(words).items()}
    config = own.get("config_file")
    if not isinstance(config, str):
        return own
    if (told := _told(config)) and named_file(config, folder) is None:
        return {**told, **own}
    read = read_mapping_text(named_text(config, folder, script, "accelerate's configuration"))
    parts = flatten(read or {})
    inner = {key.split(".", 1)[-1]: value for key, value in parts.items()}
    return {**inner, **own}


def _meant(said: dict[str, Any], script: Script, folder: Path) -> Flags:
    found: Flags = {}
    kind = str(said.get("distributed_type", "")).upper()
    file = said.get("deepspeed_config_file")
    if str(said.get("num_processes", "")).isdigit():
        found[PROCESSES] = int(str(said["num_processes"]))
    if (word := str(said.get("mixed_precision", "no"))) != "no":
        found["precision"] = word
    if file or kind == "DEEPSPEED" or truth("use_deepspeed", said.get("use_deepspeed", False)):
        stage = said.get("zero_stage", USUAL_STAGE)
        offload = said.get("offload_optimizer_device", "none")
        weights = said.get("offload_param_device", "none")
        if isinstance(file, str):
            where = "a DeepSpeed configuration"
            found |= _zero(read_mapping_text(named_text(file, folder, script, where)) or {})
        else:
            found |= _kept(stage, offload, weights)
    elif kind.startswith("FSDP") or truth("use_fsdp", said.get("use_fsdp", False)):
        again = said.get("fsdp_reshard_after_forward", True)
        usual = "SHARD_GRAD_OP" if str(again).lower() == "false" else "FULL_SHARD"
        found["fsdp"] = str(said.get("fsdp_sharding_strategy", usual))
        if truth("fsdp_offload_params", said.get("fsdp_offload_params", False)):
            found["cpu_offload"] = True
    return found


def _kept(stage: Any, optimizer: Any, weights: Any) -> Flags:
    """Of DeepSpeed: its stage, and what the host keeps, by the device that is stated for each."""
    told = {"cpu_offload": optimizer, "param_offload": weights}
    kept = {name: str(device) in ("cpu", "nvme") for name, device in told.items()}
    return {"deepspeed": f"zero{stage}", **(kept if any(kept.values()) else {})}


def _zero(config: Mapping[Any, Any]) -> Flags:
    """The same of a configuration of DeepSpeed's; an older one's word for the optimizer beside
    today's (`cpu_offload`, deepspeed/runtime/zero/config.py)."""
    keys = flatten(config)
    older = "cpu" if truth("", keys.get("zero_optimization.cpu_offload", False)) else "none"
    optimizer = keys.get("zero_optimization.offload_optimizer.device", older)
    weights = keys.get("zero_optimization.offload_param.device", "none")
    return _kept(keys.get("zero_optimization.stage", 0), optimizer, weights)


def staged(config: str, folder: Path) -> Flags:
    """What a DeepSpeed configuration that a key names says, where the file is there; else its name,
    which may tell it."""
    path = named_file(config, folder)
    read = read_mapping_text(path.read_text(encoding="utf-8")) if path else None
    return _zero(read) if read else {"deepspeed": config}
