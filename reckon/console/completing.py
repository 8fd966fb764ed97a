"""`reckon completion`: what a shell needs to complete commands, flags, and names of catalogs."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from predictor.errors import unknown
from reckon.console.flags import argument

SHELLS = ("bash", "zsh", "fish")


@click.command(
    epilog="Example: reckon completion bash > ~/.local/share/bash-completion/completions/reckon",
    params=[argument("shell", "SHELL")],
)
def completion(shell: str) -> int:
    """Print the script by which a shell completes commands, flags and names of catalogs.

    SHELL: bash, zsh or fish.
    """
    from reckon.console.cli import COMPLETE, app

    if shell not in SHELLS:
        raise unknown("shell", shell, SHELLS)
    form = get_completion_class(shell)
    assert form is not None
    print(form(app, {}, "reckon", COMPLETE).source())
    return 0
