"""A way to write launch lines: its table, its syntax, and what becomes of a plan in it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from predictor.catalog import ServingPlanSpec, TrainingPlanSpec, parse
from predictor.errors import InputError
from predictor.files import is_file
from predictor.hardware import Cluster
from predictor.models import Model
from predictor.plans import (
    CATEGORY_FIELDS,
    NUMERIC_FIELDS,
    SERVING_CATEGORIES,
    SERVING_NUMBERS,
    Rule,
    ServingPlan,
    TrainingPlan,
)
from predictor.records import dataclass
from predictor.serving import ServingRequest, complete_serving
from predictor.timing import RunParameters
from predictor.training import TrainingRequest, complete_training
from reckon.launch.calls import called
from reckon.launch.dimensions import PREFIX, dimensions, facts_of, model_of
from reckon.launch.effects import by_effect
from reckon.launch.foreign import ForeignLine, other_engine, reader_of
from reckon.launch.launcher import NODES, PER_NODE, PROCESSES
from reckon.launch.table import Entry, Facts, Flags, same
from reckon.launch.variables import settled

Request = TrainingRequest | ServingRequest


@dataclass(frozen=True, slots=True)
class Source:
    """Flags of a launch line as written, and what the reader of its syntax could not follow."""

    flags: Flags
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Dialect:
    """One framework's launch lines.

    name       as `--emit` takes it
    framework  whose defaults hold for what the line does not say
    model      the table of a model's dimensions, or of its name
    entries    the table of a plan's fields; both in the order in which they are read
    ignored    beginnings of flags that say nothing of speed or memory
    parse      text, folder of the file it is from -> flags
    render     flags and facts -> text; None where such lines are read only
    serving    whether it starts an engine, not a training run
    whole      whether a flag that is absent means its default
    comment    what begins a comment in the text; empty where there are none
    beside     fields that the program states in any case, so that they are given beside the line
               when it is read
    laws       what the framework refuses of plans that its line can say
    foreign    what a line is of that is not predicted, of its flags and its text
    """

    name: str
    framework: str
    model: tuple[Entry, ...]
    entries: tuple[Entry, ...]
    ignored: tuple[str, ...]
    parse: Callable[[str, Path], Source]
    render: Callable[[Flags, Facts], str] | None = None
    serving: bool = False
    whole: bool = True
    comment: str = "#"
    beside: tuple[str, ...] = ()
    laws: Callable[[Any], list[Rule]] = lambda plans: []
    foreign: Callable[[Flags, str], str | None] = lambda flags, text: None

    @property
    def written(self) -> bool:
        """Whether plans are written as such lines."""
        return self.render is not None


@dataclass(frozen=True, slots=True)
class Launch:
    """What a launch line was read as.

    fields      keys of a plan (`TrainingPlanSpec`, `ServingPlanSpec`)
    model       the model that the line states; None where it states none
    understood  flags that were read, with their values
    ignored     flags that say nothing of speed or memory
    unknown     flags that may, and are not known here
    overridden  fields that are given beside the line: what it says, and what counts
    notes       what was found out, or could not be followed
    """

    dialect: str
    fields: dict[str, Any]
    model: Model | None
    understood: dict[str, Any]
    ignored: list[str]
    unknown: list[str]
    overridden: dict[str, tuple[Any, Any]]
    notes: list[str]

    def to_dict(self) -> dict[str, Any]:
        """As `--json` writes it."""
        return {
            "dialect": self.dialect,
            "fields": self.fields,
            "model": self.model.name if self.model else None,
            "understood": self.understood,
            "ignored": self.ignored,
            "unknown": self.unknown,
            "overridden": {
                name: {"line": line, "given": given}
                for name, (line, given) in self.overridden.items()
            },
            "notes": self.notes,
        }


@dataclass(frozen=True, slots=True)
class Difference:
    """A field that a launch line cannot say: its value, and what the line means instead."""

    field: str
    wanted: Any
    said: Any

    def __str__(self) -> str:
        return f"{self.field}={self.wanted} (it means {self.said})"


@dataclass(frozen=True, slots=True)
class Emitted:
    """A launch line, and what it could not say.

    again   the request that the line says when it is read
    beside  what is given beside it then, but for the cluster
    """

    dialect: str
    text: str
    unsaid: list[Difference]
    again: Request
    beside: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """As `--json` writes it."""
        return {
            "dialect": self.dialect,
            "text": self.text,
            "unsaid": [{"field": d.field, "wanted": d.wanted, "said": d.said} for d in self.unsaid],
        }


SPELLED = {"weights": "precision", "kv": "kv_precision"}
"""Fields of a serving plan that a request calls otherwise."""

SUFFIXES = (
    ".sh",
    ".yaml",
    ".yml",
    ".json",
    ".toml",
    ".txt",
    ".slurm",
    ".sbatch",
    ".args",
    ".conf",
    ".py",
)


def text_of(given: str) -> tuple[str, Path]:
    """The text of a launch line, from a file where it names one, also as a call of a script with
    its settings and arguments (`TP=8 bash run.sh 7B`); and the folder it is from.

    Raises InputError for a file that is not there or is no text.
    """
    one = re.sub(r"\\\s*\n", " ", given.strip())
    if (call := called(one)) is not None:
        text, folder = text_of(call.file)
        return f"{call.before}{text}", folder
    if "\n" in one or len(one.split()) != 1 or one.startswith("-"):
        return given, Path()
    path = Path(one)
    if not is_file(path) and (match := re.fullmatch(r"(.+\.py):(\w+)", one)):
        text, folder = text_of(match[1])
        return f"# recipe: {match[2]}\n{text}", folder
    if not is_file(path):
        if path.suffix in SUFFIXES or len(path.parts) > 1:
            why = "is a folder" if path.is_dir() else "no such file"
            raise InputError(f"cannot read {path}: {why}")
        return given, Path()
    try:
        return path.read_text(encoding="utf-8"), path.parent
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from None


def _fields(dialect: Dialect, facts: Facts, said: Iterable[str]) -> dict[str, Any]:
    """Keys of a plan of what a line said."""
    found = {SPELLED.get(k, k): facts[k] for k in said if not k.startswith((PREFIX, "@"))}
    if dialect.framework:
        found.setdefault("framework", dialect.framework)
    return found


def _nothing(dialect: Dialect, text: str, rest: list[str], notes: list[str]) -> InputError:
    """What is said of a line without any flag of its program's."""
    if dialect.serving and (other := other_engine(text)):
        return InputError(
            f"--from-{dialect.name}: the line is of {other}, which is not read; state what it sets "
            f"(--framework {other} --model --tp ...)"
        )
    if dialect.serving and (reader := reader_of(text)) not in ("", dialect.name):
        return InputError(
            f"--from-{dialect.name}: the line is of another engine; --from-{reader} reads it"
        )
    told = f": {', '.join(map(str, rest[:5]))}" if rest else ""
    if tests := [note for note in notes if note.endswith("taken as false")]:
        told = f", since {tests[0]}; name the file as it is called, 'FILE ARGUMENTS'"
    return InputError(f"--from-{dialect.name}: no flag of {dialect.name} is in it{told}")


def read(
    dialect: Dialect,
    given: str,
    model: Model | None = None,
    beside: Mapping[str, Any] | None = None,
) -> Launch:
    """Read a launch line.

    given   the line, a script, or the name of a file with either
    model   where the line need not state one; its dimensions count instead of the line's
    beside  keys of a plan that are given beside the line: they count instead of what it says, and
            what the line leaves to be derived follows from them

    Raises InputError where nothing is understood, values are impossible or contradict each other.
    """
    text, folder = text_of(given)
    source = dialect.parse(text, folder)
    flags = source.flags
    if model is None and (other := dialect.foreign(flags, text)):
        raise ForeignLine(f"--from-{dialect.name}: the line is of {other}, which is not read")
    known: set[str] = set()
    flags, open_notes = settled(flags, dialect.entries, beside or {}, SPELLED)
    notes = [*source.notes, *open_notes]
    said: Facts = {}
    for entry in dialect.model:
        known |= set(entry.flags)
        said |= entry.read(flags, said, dialect.whole)
    stated, found_out = _stated(said, model)
    notes += found_out
    named = {own: field for field, own in SPELLED.items()}
    own = {named.get(k, k) if dialect.serving else k: v for k, v in (beside or {}).items()}
    facts: Facts = {**(facts_of(stated) if stated else {}), **own}
    overridden: dict[str, tuple[Any, Any]] = {}
    for entry in dialect.entries:
        known |= set(entry.flags)
        found = entry.read(flags, facts, dialect.whole)
        if any(flag in flags for flag in entry.flags):
            overridden |= {
                k: (v, own[k]) for k, v in found.items() if k in own and not same(v, own[k])
            }
        said |= found
        facts |= {k: v for k, v in found.items() if k not in own}
    understood = {f: v for f, v in flags.items() if f in known}
    rest = [f for f in flags if f not in known]
    if set(understood) <= {NODES, PER_NODE, PROCESSES, "@name", "@version"}:
        raise _nothing(dialect, text, rest, notes)
    fields = _fields(dialect, facts, [k for k in said if k not in own])
    ignored = [f for f in rest if f.startswith(dialect.ignored)]
    return Launch(
        dialect=dialect.name,
        fields=fields,
        model=stated,
        understood=understood,
        ignored=ignored,
        unknown=by_effect(f for f in rest if f not in ignored),
        overridden=overridden,
        notes=notes,
    )


def _stated(said: Facts, model: Model | None) -> tuple[Model | None, list[str]]:
    """The model that counts, and where a line's dimensions are others than those of `model`."""
    if model is None:
        return model_of(said)
    own = dimensions(model)
    sizes = {name.removeprefix(PREFIX): value for name, value in said.items()}
    others = [
        f"{name} {value}: --model {model.name} has {own[name]}, which counts"
        for name, value in sizes.items()
        if "layers" in sizes and name in own and not same(value, own[name])
    ]
    return model, others


def _plain(value: Any) -> Any:
    """A number as the files have it: whole ones as int, absent ones None."""
    if isinstance(value, bool | str):
        return value
    found = float(value)
    if not math.isfinite(found):
        return None
    return int(found) if found == int(found) else found


def facts_of_plan(plan: TrainingPlan | ServingPlan, cluster: Cluster) -> Facts:
    """Every field of a single plan."""
    training = isinstance(plan, TrainingPlan)
    names = (NUMERIC_FIELDS, CATEGORY_FIELDS) if training else (SERVING_NUMBERS, SERVING_CATEGORIES)
    found = {name: _plain(getattr(plan, name)) for own in names for name in own}
    found["gpus"] = int(plan.gpus)
    found["@per_node"] = int(cluster.accelerators_per_node)
    return {k: v for k, v in found.items() if v is not None}


def facts_of_request(request: Request) -> Facts:
    """Every field of a complete request, and its model's dimensions."""
    found = {**facts_of_plan(request.plan, request.cluster), **facts_of(request.model)}
    if isinstance(request, TrainingRequest):
        name, value = "tokens", request.tokens
    else:
        name, value = "rate", request.rate
    return found if value is None else {**found, name: _plain(value)}


def emit(dialect: Dialect, request: Request, run: RunParameters) -> Emitted:
    """Write a complete request as a launch line, read it back, and say what it could not say.

    run   memory parameters, by which what the line leaves open is completed
    """
    check_kind(dialect, isinstance(request, ServingRequest), "emit", "predict")
    facts = facts_of_request(request)
    flags: Flags = {}
    apart = any(facts[f"model.{key}"] for key in ("mamba_layers", "conv_layers", "mixed_heads"))
    hybrid = apart and not dialect.serving
    for entry in (*(() if hybrid else dialect.model), *dialect.entries):
        flags |= entry.write(facts, dialect.whole)
    assert dialect.render is not None  # `check_kind`
    text = dialect.render(flags, facts)
    again, beside, unsaid = _read_back(dialect, text, request, run)
    if dialect.comment and unsaid:
        text += "".join(f"{dialect.comment} not said here: {one}\n" for one in unsaid)
    return Emitted(dialect.name, text, unsaid, again, beside)


def check_kind(dialect: Dialect, serving: bool, flag: str, verb: str) -> None:
    """Raise InputError for a dialect of the other kind of run, and for one that is only read."""
    if not dialect.written:
        raise InputError(f"--{flag} {dialect.name}: such files are read, not written")
    if serving != dialect.serving:
        kind = "infer" if dialect.serving else "train"
        raise InputError(f"--{flag} {dialect.name} is for {verb} {kind}")


def _read_back(
    dialect: Dialect, text: str, request: Request, run: RunParameters
) -> tuple[Request, dict[str, Any], list[Difference]]:
    """The request that a line says when it is read and completed; what had to be given beside it;
    and the fields that are others than those of the request it was written for.

    What every request must state and the line does not (lengths, accelerators) is taken from the
    request, and counted as not said. The system is given beside the line in any case.
    """
    try:
        launch = read(dialect, text)
        named = launch.model
    except InputError:  # it cannot be read without its model, which it does not name
        launch, named = read(dialect, text, request.model), None
    plan, model = request.plan, named or request.model
    found: list[Difference] = []
    beside: dict[str, Any] = {}
    if named is None or dimensions(named) != dimensions(request.model):
        said = named.name if named else "none"
        found.append(Difference("model", request.model.name, said))
        beside = {} if named else {"model": request.model.name}
    fields = dict(launch.fields)
    if plan.framework != dialect.framework:
        fields["framework"] = beside["framework"] = plan.framework
    if plan.era != "neutral":
        fields["era"] = beside["era"] = plan.era
    needed = ["input_len", "output_len"] if dialect.serving else ["gpus", "seq_len", "global_batch"]
    for name in needed:
        if name not in fields and not (name == "gpus" and "dp" in fields):
            fields[name] = beside[name] = int(getattr(plan, name))
            found.append(Difference(name, fields[name], "nothing"))
    other = _completed(dialect, fields, model, request.cluster, run)
    names = (*SERVING_NUMBERS, *SERVING_CATEGORIES)
    if not dialect.serving:
        names = (*NUMERIC_FIELDS, *CATEGORY_FIELDS)
    for name in names:
        one, two = getattr(plan, name), getattr(other.plan, name)
        if name not in ("framework", "era") and not alike(name, plan, other.plan, model):
            found.append(Difference(name, _plain(one), _plain(two)))
    programs = [one.field for one in found if one.field in dialect.beside]
    if programs:
        own = facts_of_plan(plan, request.cluster)
        beside |= {name: own[name] for name in programs if name in own}
        other = _completed(dialect, {**fields, **beside}, model, request.cluster, run)
    return other, beside, found


def _completed(
    dialect: Dialect, fields: dict[str, Any], model: Model, cluster: Cluster, run: RunParameters
) -> Request:
    stated = {name: value for name, value in fields.items() if name != "model"}
    given: dict[str, Any] = {"strict": False, "model": model, "cluster": cluster}
    if dialect.serving:
        return complete_serving(parse(ServingPlanSpec, stated, dialect.name), run, **given)
    return complete_training(parse(TrainingPlanSpec, stated, dialect.name), run, **given)


MATTERS: dict[str, Callable[[Any, Model], bool]] = {
    "acceptance": lambda plan, model: plan.drafted > 0,
    "draft_cost": lambda plan, model: plan.drafted > 0,
    "recompute_modules": lambda plan, model: plan.recompute == "selective",
    "recompute_share": lambda plan, model: plan.recompute == "full",
    "recompute_chunk": lambda plan, model: plan.recompute == "full",
    "offload_to": lambda plan, model: any(
        (plan.offload_optimizer > 0, plan.offload_activations > 0, plan.offload_weights > 0)
    ),
    **dict.fromkeys(
        ("host_memory", "host_bandwidth", "host_link"), lambda plan, model: plan.offload != "none"
    ),
    **dict.fromkeys(("prefill_tp", "prefill_dp"), lambda plan, model: plan.prefill_workers > 0),
    "reductions": lambda plan, model: plan.tp > 1,
    "shared_experts": lambda plan, model: model.is_moe and model.shared_width > 0,
    "graph_limit": lambda plan, model: plan.execution == "graph",
    "prompt_graphs": lambda plan, model: plan.execution == "graph",
    "padded": lambda plan, model: plan.execution == "graph",
    "cp_kind": lambda plan, model: plan.cp > 1,
    "sequence_parallel": lambda plan, model: plan.tp > 1,
    "schedule": lambda plan, model: plan.pp > 1,
    "split": lambda plan, model: plan.pp > 1,
    "mtp": lambda plan, model: model.mtp_layers > 0,
    "lora_rank": lambda plan, model: plan.frozen,
    **dict.fromkeys(("dispatch", "expert_load", "routed_nodes"), lambda plan, model: model.is_moe),
    "dispatch_processors": lambda plan, model: model.is_moe and plan.dispatch == "once",
    "ep_overlap": lambda plan, model: model.is_moe,
}
"""Where fields that do not always matter do."""


def alike(name: str, plan: Any, other: Any, model: Model) -> bool:
    """Whether two plans mean the same by a field: two names of one thing do, and so does what
    nothing depends on."""
    one, two = getattr(plan, name), getattr(other, name)
    if name in ("sharding", "dp_shard"):
        return _sharded(plan)[name == "dp_shard"] == _sharded(other)[name == "dp_shard"]
    if name in MATTERS and not any(MATTERS[name](each, model) for each in (plan, other)):
        return True
    if isinstance(one, str | bool):
        return bool(one == two)
    return bool(float(one) == float(two) or (math.isnan(one) and math.isnan(two)))


def _sharded(plan: Any) -> tuple[str, float]:
    """What is sharded, and among how many."""
    ranks = float(plan.gradient_group)
    if plan.sharding == "hsdp" and float(plan.shard_group) < ranks:
        return "hsdp", float(plan.dp_shard)
    full = ("zero3", "fsdp", "hsdp")
    return ("fsdp" if plan.sharding in full else plan.sharding) if ranks > 1 else "any", 0.0
