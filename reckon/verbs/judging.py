"""`reckon check`: a launch line, a script or a run file, before it is started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from predictor import catalog
from predictor.catalog import load
from predictor.errors import InputError
from predictor.files import is_file
from predictor.records import dataclass
from predictor.timing import Calibration
from predictor.units import GIB
from reckon.launch import DIALECTS, Launch
from reckon.launch.dialect import text_of
from reckon.launch.foreign import ForeignLine
from reckon.verbs.launching import read_beside
from reckon.verbs.naming import reference
from reckon.verbs.results import Prediction
from reckon.verbs.served import ServingResult
from reckon.verbs.serving import predict_infer
from reckon.verbs.training import predict_train

FITS, DOUBTFUL, WRONG = 0, 1, 2
"""Exit status: fits; fits perhaps, or something that matters is not known; cannot be read or
predicted, or does not fit."""

SURE, LOST = 0.1, 0.5
"""Probability of not fitting below which a run fits, and above which it does not."""

HELPS = 3
"""Changes that are named."""

TRIED: Mapping[str, tuple[dict[str, Any], ...]] = {
    "training": (
        {"micro_batch": "half"}, {"micro_batch": "double"},
        {"recompute": "none"}, {"recompute": "selective"}, {"recompute": "full"},
        {"sharding": "zero1"}, {"sharding": "fsdp"},
        {"tp": "half"}, {"tp": "double"}, {"pp": "half"}, {"pp": "double"},
        {"vpp": "double"}, {"vpp": 2}, {"sequence_parallel": True}, {"grad_overlap": True},
        {"tp_overlap": True}, {"param_overlap": True}, {"fused": True}, {"cuda_graphs": "layers"},
        {"precision": "fp8"},
    ),
    "serving": (
        {"tp": "half"}, {"tp": "double"}, {"kv_precision": "fp8"}, {"precision": "fp8"},
        {"execution": "graph"}, {"concurrency": "half"}, {"concurrency": "double"},
    ),
}  # fmt: skip
"""Changes that are tried, one at a time."""


SERVED = {"precision": "weights", "kv_precision": "kv"}
"""Fields of a serving plan that requests call otherwise."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one key: from what to what, its time over the present one (of serving, that of an
    output token times accelerators), its memory per device over that, and whether it fits."""

    field: str
    before: Any
    after: Any
    ratio: float
    memory: float
    fits: bool

    def to_dict(self) -> dict[str, Any]:
        """As `--json` writes it."""
        return {
            "field": self.field,
            "from": self.before,
            "to": self.after,
            "time_ratio": self.ratio,
            "memory_ratio": self.memory,
            "fits": self.fits,
        }


@dataclass(frozen=True, slots=True)
class Judged:
    """What is said of a run before it starts.

    status    `FITS`, `DOUBTFUL` or `WRONG`
    doubts    why it is not sure
    helps     changes that help most, the most first
    """

    status: int
    result: Prediction | ServingResult
    launch: Launch | None
    doubts: tuple[str, ...]
    helps: tuple[Change, ...]

    def to_dict(self) -> dict[str, Any]:
        """As `--json` writes it."""
        return {
            "schema_version": 1,
            "kind": "check",
            "status": ("fits", "doubtful", "wrong")[self.status],
            "doubts": list(self.doubts),
            "launch": self.launch.to_dict() if self.launch else None,
            "helps": [one.to_dict() for one in self.helps],
            "prediction": self.result.to_dict(),
        }


def understood(given: str, fields: Mapping[str, Any]) -> tuple[dict[str, Any], Launch | None]:
    """Keys of a plan that a run file, a script or a line states, those given beside it counting;
    the line as it was read, None for a run file and for what --json wrote of one.

    Raises InputError where no reader understands it.
    """
    path = Path(given)
    if path.suffix in (".yaml", ".yml", ".json") and is_file(path):
        content = catalog.read_request(path)
        if {"seq_len", "input_len"} & set(content):
            return {**content, **fields}, None
    launch = _launch(given, fields)
    found = {**launch.fields, **fields}
    if "model" not in fields and launch.model is not None:
        found["model"] = reference(launch.model)
    if launch.dialect in ENGINES and not _is_serving(found):
        raise InputError(
            "an engine's line does not say what it is asked: give --set input_len=, output_len= "
            "(tokens) and concurrency="
        )
    return found, launch


def _launch(given: str, fields: Mapping[str, Any]) -> Launch:
    """The launch line, by the dialect that understands most of it."""
    text_of(given)  # says of a file that is not there
    model = catalog.model(fields["model"]) if "model" in fields else None
    beside = {key: value for key, value in fields.items() if key != "model"}
    found: list[tuple[int, Launch]] = []
    errors: dict[str, InputError] = {}
    for name in DIALECTS:
        try:
            launch = read_beside(name, given, model, beside)
        except InputError as error:
            errors[name] = error
            continue
        score = 3 * len(launch.understood) - 2 * len(launch.unknown) + _named(name, given)
        found.append((score, launch))
    if not given.strip():
        raise InputError("give a run file, a script or a launch line; there is nothing in this one")
    whose = {launch.dialect for _, launch in found}
    found = [
        pair for pair in found
        if TAKES.get(pair[1].dialect) not in whose or _named(pair[1].dialect, given)
    ]  # fmt: skip
    own = max(errors, key=lambda name: _named(name, given), default="")
    told = _named(own, given) if own else 0
    if found:
        best = max(found, key=lambda pair: pair[0])[1]
        foreign = next((one for one in errors.values() if isinstance(one, ForeignLine)), None)
        if foreign is not None and not _named(best.dialect, given):
            raise foreign
        if told <= _named(best.dialect, given) + (best.model is not None):
            return best
    elif not told:
        first = next(iter(errors.values()))
        raise InputError(f"{given}: no reader of launch lines understands it ({first})")
    raise errors[own]  # a line of that tool, which is wrong: others make nothing of it


ENGINES = tuple(name for name, one in DIALECTS.items() if one.serving)
"""Dialects whose lines start an engine."""

SIGNS = {"megatron": ("pretrain_", "megatron"), "torchtitan": ("torchtitan", "[parallelism]"),
         "nemo": ("nemo",),
         "automodel": ("nemo_automodel", "nemoautomodel", "automodel "),
         "deepspeed": ("deepspeed", "zero_optimization"),
         "trainer": ("base_model", "per_device_train_batch_size"),
         "maxtext": ("maxtext", "MaxText", "ici_"), "nanotron": ("nanotron", "tp_mode"),
         "llm-foundry": ("composer", "mpt_causal_lm", "device_train_microbatch_size"),
         "vllm": ("vllm",),
         "sglang": ("sglang",), "trtllm": ("trtllm",), "tgi": ("text-generation-",),
         "lmdeploy": ("lmdeploy",), "llama-cpp": ("llama-server", "llama.cpp")}  # fmt: skip
"""Words by which a line tells whose it is."""

TAKES = {"deepspeed": "megatron"}
"""Dialects that know the flags of another, too, whose a line is that does not name them."""


def _named(name: str, given: str) -> int:
    """Whether a line's words name a dialect, as a score."""
    text = text_of(given)[0].lower()
    return 20 * any(sign in text for sign in SIGNS[name])


def check(
    given: str,
    fields: Mapping[str, Any] | None = None,
    calibration: str | Path | Calibration = "default",
) -> Judged:
    """Judge a run before it is started.

    given        a script, a run file, or the line itself
    fields       keys of a plan beside it, which count; `system` or `accelerator` at least where the
                 line cannot say them

    Raises InputError where it cannot be read or predicted.
    """
    known = load(calibration)
    asked, launch = understood(given, dict(fields or {}))
    result = predicted(asked, known)
    doubts = _doubts(result, launch)
    chance = _chance(result)
    status = WRONG if chance > LOST else DOUBTFUL if doubts else FITS
    return Judged(status, result, launch, doubts, _helps(asked, result, known))


def _is_serving(fields: Mapping[str, Any]) -> bool:
    return "input_len" in fields


def predicted(fields: Mapping[str, Any], known: Calibration) -> Prediction | ServingResult:
    """The prediction of a run."""
    asked = dict(fields)
    model, system = asked.pop("model", None), asked.pop("system", None)
    if model is None:
        raise InputError("the line does not say the model; give --model")
    if system is None:
        if "accelerator" not in asked:
            raise InputError("the line does not say what it runs on; give --system")
        system = asked.pop("accelerator")
    verb = predict_infer if _is_serving(asked) else predict_train
    found = verb(model, system, asked, known)
    assert isinstance(found, Prediction | ServingResult)
    return found


def _chance(result: Prediction | ServingResult) -> float:
    """Probability that a run does not fit; of serving, whose engine takes what there is, 0 or 1."""
    return result.p_oom if isinstance(result, Prediction) else float(not result.fits)


def _doubts(result: Prediction | ServingResult, launch: Launch | None) -> tuple[str, ...]:
    """Why it is not sure that a run goes as predicted."""
    found = []
    chance = _chance(result)
    if chance > SURE:
        found.append(
            f"it does not fit with a probability of {chance:.0%} "
            f"({result.peak_memory / GIB:.1f} GiB per device)"
        )
    if launch is not None and launch.unknown:
        found.append(f"flags that may matter are not known: {', '.join(launch.unknown[:6])}")
    if launch is not None:
        found += [f"read with a note: {note}" for note in launch.notes if "not read" in note]
    return tuple(found)


def _cost(result: Prediction | ServingResult) -> float:
    """What a change is to lower: seconds of accelerators per unit of work."""
    if isinstance(result, ServingResult):
        return result.gpus / result.output_tokens_per_s.value
    return result.step_time.value * float(result.request.plan.gpus)


def _helps(
    fields: Mapping[str, Any], result: Prediction | ServingResult, known: Calibration
) -> tuple[Change, ...]:
    """The changes of one key that help most: of a run that does not fit those that need least
    memory, of others those that cost least."""
    serving = isinstance(result, ServingResult)
    tight = _chance(result) > SURE
    found: list[Change] = []
    for field, before, after in _tried(fields, result):
        changed = {**fields, field: after}
        if field in ("tp", "pp"):
            changed.pop("dp", None)
        if not serving:
            changed["gpus"] = int(result.request.plan.gpus)
        try:
            other = predicted(changed, known)
        except InputError:
            continue
        one = Change(
            field,
            _plain(before),
            _plain(after),
            _cost(other) / _cost(result),
            other.peak_memory / result.peak_memory,
            _chance(other) <= SURE,
        )
        if one.memory < 0.97 if tight else one.fits and one.ratio < 0.99:
            found.append(one)

    def worth(one: Change) -> tuple[bool, float]:
        return not one.fits, one.ratio if one.fits else one.memory

    best: dict[str, Change] = {}
    for one in sorted(found, key=worth):
        best.setdefault(one.field, one)
    return tuple(list(best.values())[:HELPS])


def _tried(
    fields: Mapping[str, Any], result: Prediction | ServingResult
) -> Iterator[tuple[str, Any, Any]]:
    """Fields, their present values and those that are tried."""
    serving = isinstance(result, ServingResult)
    for tried in TRIED["serving" if serving else "training"]:
        ((field, asked),) = tried.items()
        name = SERVED.get(field, field) if serving else field
        own = getattr(result.request.plan, name, None)
        before = fields.get(name) if name == "concurrency" else own
        after = _moved(before, asked)
        if after is not None and after != before:
            yield field, before, after


def _moved(before: Any, asked: Any) -> Any:
    """What a change makes of a value; None where it cannot be."""
    if asked not in ("half", "double"):
        return asked
    try:
        value = float(before) * (0.5 if asked == "half" else 2.0)
    except (TypeError, ValueError):
        return None
    return int(value) if value >= 1 and value.is_integer() else None


def _plain(value: Any) -> Any:
    if isinstance(value, bool | str) or value is None:
        return value
    number = float(value)
    return int(number) if number.is_integer() else number


__all__ = ["DOUBTFUL", "FITS", "WRONG", "Change", "Judged", "check", "predicted", "understood"]
