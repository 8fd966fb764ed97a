"""Primus: configurations of a framework's trainer, which name a model of Primus's list and override
what its presets say (AMD-AGI/Primus @ fd1eeab, examples/*/configs).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from predictor.errors import InputError
from predictor.records import dataclass
from reckon.launch.table import truth


@dataclass(frozen=True, slots=True)
class Job:
    """A trainer of a configuration.

    framework  as Primus calls it
    model      by the name of its file, without what that says of 8 bits
    narrow     whether the file of the model is the one for 8 bits
    settings   as nested as the file has them, upon those of the trainer's preset
    """

    framework: str
    model: str
    narrow: bool
    settings: dict[str, Any]


PRESETS: dict[str, dict[str, Any]] = {
    "megatron": {"bf16": True, "attention_dropout": 0.0, "hidden_dropout": 0.0,
                 "use_distributed_optimizer": True},
    "torchtitan": {"activation_checkpoint": {"mode": "none"}, "compile": {"enable": True}},
    "maxtext": {"remat_policy": "full", "dtype": "bfloat16", "weight_dtype": "bfloat16",
                "hardware": "gpu", "attention": "cudnn_flash_te", "dataset_type": "hf"},
}  # fmt: skip
"""What trainers take unless a configuration overrides it
(primus/configs/modules/*/{pre_trainer,trainer_base}.yaml, models/*/*_base.yaml)."""

NARROW = "-fp8"
"""How names of torchtitan's models end that are multiplied in 8 bits (models/torchtitan)."""


def read_job(mapping: Mapping[Any, Any], framework: str) -> Job | None:
    """The trainer of a configuration of Primus; None for any other file.

    Raises InputError for a configuration of another framework than the one that is asked for, and
    for one that only changes another file.
    """
    modules = mapping.get("modules")
    if not isinstance(modules, Mapping):
        if mapping.get("extends"):
            raise InputError(
                f"extends {mapping['extends']}: the rest is in that file; give both as one"
            )
        return None
    trainers = [one for one in modules.values() if isinstance(one, Mapping)]
    trainers = [one for one in trainers if isinstance(one.get("overrides"), Mapping)]
    if len(trainers) != 1:
        return None
    whose = str(trainers[0].get("framework", framework))
    if whose != framework:
        reader = f"--from-{whose}" if whose in PRESETS else "no reader"
        raise InputError(f"--from-{framework}: the configuration is of {whose}; {reader} reads it")
    own = {**PRESETS.get(whose, {}), **trainers[0]["overrides"]}
    model = own.pop("model") if isinstance(own.get("model"), str) else trainers[0].get("model")
    name = Path(str(model or "").strip()).name.removesuffix(".yaml")
    if whose == "megatron":
        own["fp8_format"] = own.pop("fp8", None)
        own |= _dispatched(own)
    return Job(whose, name.removesuffix(NARROW), name.endswith(NARROW), own)


TURBO = ("enable_primus_turbo", "use_turbo_deepep")


def _dispatched(own: dict[str, Any]) -> dict[str, Any]:
    """What Primus's own dispatcher of tokens stands for: it takes the flexible one's place
    (primus/backends/megatron/patches)."""
    wanted = own.pop(TURBO[1], False)
    if not all(truth(name, value) for name, value in zip(
        TURBO, (own.get(TURBO[0], False), wanted), strict=True
    )):  # fmt: skip
        return {}
    return {"moe_token_dispatcher_type": "flex", "moe_enable_deepep": True}
