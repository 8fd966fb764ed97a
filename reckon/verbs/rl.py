"""`predict_rl`: iterations of reinforcement learning, rollouts and training, on accelerators that
they share or split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from predictor import catalog
from predictor.catalog import load
from predictor.errors import InputError
from predictor.records import dataclass
from predictor.search import Iteration, Rollouts, iterations
from predictor.timing import Calibration
from reckon.verbs.figures import SCHEMA_VERSION
from reckon.verbs.training import DEFAULT_CALIBRATION

OPEN = ("epochs", "critic")
NEEDED = (
    "model", "system", "gpus", *(one.name for one in fields(Rollouts) if one.name not in OPEN)
)  # fmt: skip
"""Keys of a request, beside `serve` and `train`; and those that it may leave open."""


@dataclass(frozen=True, eq=False)
class PostTraining:
    """Ways to run an iteration, the shortest first."""

    model: str
    system: str
    gpus: int
    rollouts: Rollouts
    ways: list[Iteration]

    def best(self, way: str) -> Iteration | None:
        """The shortest of one kind."""
        return next((one for one in self.ways if one.way == way), None)

    def to_dict(self) -> dict[str, Any]:
        """As `--json` writes it; times in seconds."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "post-training",
            "model": self.model,
            "system": self.system,
            "gpus": self.gpus,
            "rollouts": asdict(self.rollouts),
            "iterations": [asdict(one) for one in self.ways],
        }


def predict_rl(
    request: Mapping[str, Any] | str | Path,
    calibration: str | Path | Calibration = DEFAULT_CALIBRATION,
) -> PostTraining:
    """Predict iterations of reinforcement learning.

    request   a mapping or a YAML file: `model`, `system`, `gpus` in all; `prompts` of an
              iteration, `samples` for each, `input_len` and `output_len` on average, `variation` of
              the lengths (standard deviation over mean), `batch` of an optimizer step; `epochs`
              (1) in which answers are learned from, `critic` (no) that learns beside; `serve` and
              `train` with keys of an engine's and of the training plan (learns_from: grpo)

    Raises InputError for what is missing or cannot be.
    """
    content = dict(request if isinstance(request, Mapping) else catalog.read_mapping(Path(request)))
    serve, train = (dict(content.pop(name, None) or {}) for name in ("serve", "train"))
    if unknown := [name for name in content if name not in (*NEEDED, *OPEN)]:
        keys = ", ".join((*NEEDED, *OPEN))
        raise InputError(f"the request has {unknown[0]!r}; its keys are {keys}")
    if missing := [name for name in NEEDED if name not in content]:
        raise InputError(f"the request lacks {', '.join(missing)}")
    critic = content.pop("critic", False)
    if not isinstance(critic, bool):
        raise InputError(f"critic {critic!r} is not yes or no")
    told = [one.name for one in fields(Rollouts) if one.name in content]
    rollouts = Rollouts(**{name: _number(content, name) for name in told}, critic=critic)
    model, cluster = catalog.model(content["model"]), catalog.system(content["system"])
    gpus = _number(content, "gpus")
    ways = iterations(model, cluster, gpus, rollouts, serve, train, load(calibration))
    return PostTraining(model.name, cluster.name, gpus, rollouts, ways)


def _number(content: Mapping[str, Any], name: str) -> Any:
    """A positive number of the request; whole but for the variation."""
    value = content[name]
    whole = name != "variation"
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not value > 0:
        raise InputError(f"{name} {value!r} is not a {'whole ' if whole else ''}number above 0")
    return value
