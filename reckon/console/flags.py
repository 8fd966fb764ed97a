"""What the verbs of the command line share: types of flags."""

from __future__ import annotations

from typing import Annotated, Any

import typer

Text = str | None
Json = Annotated[
    Text, typer.Option("--json", metavar="FILE", help="Whole result as JSON (- = stdout).")
]
CalibrationName = Annotated[
    str, typer.Option("--calibration", metavar="NAME|DIR", help="What to predict with.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any other key of a plan."),
]


def flag(name: str, help_text: str, metavar: str = "N") -> Any:
    """A flag with a value."""
    return typer.Option(f"--{name}", metavar=metavar, help=help_text)


RunFile = Annotated[Text, typer.Argument(metavar="[RUN.yaml]", help="Keys as the flags.")]
ModelName = Annotated[Text, flag("model", "Catalog name, config.json or .yaml.", "NAME")]
SystemName = Annotated[Text, flag("system", "Catalog name or .yaml.", "NAME")]
AcceleratorName = Annotated[Text, flag("accelerator", "Instead of a system.", "NAME")]
TP = Annotated[Text, flag("tp", "Tensor parallel.")]
PP = Annotated[Text, flag("pp", "Pipeline parallel.")]
VPP = Annotated[Text, flag("vpp", "Virtual stages per device.")]
CP = Annotated[Text, flag("cp", "Context parallel.")]
EP = Annotated[Text, flag("ep", "Expert parallel.")]
MicroBatch = Annotated[Text, flag("micro-batch", "Sequences per micro-batch.")]
SeqLen = Annotated[Text, flag("seq-len", "Tokens per sequence.")]
InputLen = Annotated[Text, flag("input-len", "Tokens of a prompt.")]
OutputLen = Annotated[Text, flag("output-len", "Tokens of an answer.")]
TrainingFramework = Annotated[Text, flag("framework", "Whose defaults to assume.", "NAME")]
TrainingEra = Annotated[Text, flag("era", "Of the framework, YYYY-MM.", "DATE")]
EngineName = Annotated[Text, flag("framework", "Engine: vllm sglang ...", "NAME")]
EngineEra = Annotated[Text, flag("era", "Of the engine, YYYY-MM.", "DATE")]
Report = Annotated[Text, flag("report", "Pictures, one HTML file.", "FILE")]
Emit = Annotated[Text, flag("emit", "Launch line instead.", "NAME")]
For = Annotated[Text, flag("for", "Only what its launch line can say.", "NAME")]
