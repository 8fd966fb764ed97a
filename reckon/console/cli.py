"""The command line: its verbs, and errors as one line.

Exit status: 0 done, 2 bad input (one line on stderr), 1 internal error.
"""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from predictor.errors import InputError, nearest
from reckon import __version__
from reckon.console.files import remember

KERNEL_FORMATS = ("aiconfigurator", "kineto", "nccl-tests", "vidur")
"""Foreign formats of measured kernels (`calibration.sources.FORMATS`)."""

COMPLETE = "_RECKON_COMPLETE"
"""Variable by which a shell asks for completions."""


class Verbs(click.Group):
    """A group whose commands are imported when they are asked for.

    places   name of a command -> where it is, 'module:name'; there, a command or a function that
             makes it
    """

    def __init__(self, name: str, help: str, places: Mapping[str, str], **more: Any) -> None:
        super().__init__(name, help=help, no_args_is_help=True, **more)
        self.places = places

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Their names, in the order of the help."""
        return list(self.places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name."""
        if cmd_name not in self.places:
            return None
        module, _, name = self.places[cmd_name].partition(":")
        found = getattr(import_module(f"reckon.console.{module}"), name)
        return found if isinstance(found, click.Command) else found()

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that arguments name; of one that is not there, the nearest."""
        if args[0] not in self.places and not args[0].startswith("-"):
            near = nearest(args[0], self.places)
            known = f" Known: {', '.join(self.places)}."
            hint = f" Did you mean {near!r}?" if near else known
            raise click.UsageError(f"No such command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)


def predict_verbs() -> click.Group:
    """`reckon predict`."""
    places = {
        "train": "predicting:train_command",
        "infer": "predicting:infer_command",
        "rl": "rolling:rl_command",
    }
    return Verbs("predict", "Predict a run.", places)


def plan_verbs() -> click.Group:
    """`reckon plan`."""
    places = {"train": "planning:train_command", "infer": "planning:infer_command"}
    return Verbs("plan", "Find the best plan.", places)


def import_verbs() -> click.Group:
    """`reckon import`."""
    places = {
        "runs": "runs:import_runs",
        **{name: f"measuring:import_{name.replace('-', '_')}" for name in KERNEL_FORMATS},
    }
    return Verbs("import", "Turn logs of runs and measurements of others into tables.", places)


def _version(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if wanted:
        print(f"reckon {__version__}")
        ctx.exit()


app = Verbs(
    "reckon",
    "How fast will this language model train or serve on these accelerators?",
    {
        "predict": "cli:predict_verbs",
        "plan": "cli:plan_verbs",
        "explain": "predicting:explain_command",
        "sweep": "exploring:sweep",
        "explore": "exploring:explore",
        "study": "exploring:study",
        "validate": "measuring:validate",
        "profile": "measuring:profile",
        "import": "cli:import_verbs",
        "calibrate": "measuring:calibrate",
        "check": "own:check",
        "compare": "own:compare",
        "watch": "own:watch",
        "show": "showing:show",
        "serve": "serving:serve",
        "completion": "completing:completion",
    },
    context_settings={"help_option_names": ["-h", "--help"]},
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_version,
            help="Print the version.",
        )
    ],
)


EXAMPLES = """reckon: how fast will this language model train or serve on these accelerators?

  a training run      reckon predict train --model llama3-70b --system dgx-h100 --gpus 1024 \\
                          --tp 8 --pp 4 --global-batch 1024 --seq-len 8192
  a serving engine    reckon predict infer --model llama3-70b --system 8xH200 --concurrency 64 \\
                          --input-len 1024 --output-len 256
  the best layout     reckon plan train --model llama3-8b --system dgx-h100 --gpus 64 \\
                          --global-batch 128 --seq-len 8192

reckon --help lists all commands, reckon show models | systems | fields what they take,
reckon serve opens a page.
"""

LONGEST, LONGEST_PATH = 80, 240
"""Letters of a value, and of a path, that a message repeats."""


def shortened(message: str) -> str:
    """A message on one line, with values in it cut that are longer than `LONGEST`; paths, which
    have to be found, than `LONGEST_PATH`."""

    def cut(found: re.Match[str]) -> str:
        most = LONGEST_PATH if os.sep in found[0] else LONGEST
        return found[0] if len(found[0]) <= most else f"{found[0][: most - 3]}..."

    line = " ".join(message.split("\n")) if "\n" in message else message
    return re.sub(rf"\S{{{LONGEST + 1},}}", cut, line)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    remember(given)
    if not given and COMPLETE not in os.environ:
        print(EXAMPLES, end="")
        return 0
    try:
        return int(app.main(args=arguments, prog_name="reckon", standalone_mode=False) or 0)
    except InputError as error:
        print(f"reckon: {shortened(str(error))}", file=sys.stderr)
        return 2
    except click.NoSuchOption as error:
        from reckon.console.hints import hint

        print(f"reckon: {shortened(hint(error))}", file=sys.stderr)
        return 2
    except click.MissingParameter as error:
        from reckon.console.hints import missing

        print(f"reckon: {shortened(missing(error))}", file=sys.stderr)
        return 2
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        return 2
    except click.ClickException as error:
        print(f"reckon: {shortened(error.format_message())}", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, click.Abort):
        print("reckon: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0


def entry() -> None:
    """The console script."""
    # What is imported stays: looking for cycles in it takes a tenth of a short command, as does
    # looking once more as it ends.
    gc.set_threshold(200_000)
    status = main()
    gc.freeze()
    if "torch.distributed" in sys.modules and "WORLD_SIZE" in os.environ:
        # Threads of PyTorch's communication that outlive their group abort a rank as it ends.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    entry()
