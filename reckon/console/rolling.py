"""`reckon predict rl`."""

from __future__ import annotations

from pathlib import Path

import click

from reckon.console.flags import Paneled, argument, calibration_option, json_option

EXAMPLE = "Example: reckon predict rl RL.yaml"


def rl_command() -> click.Command:
    """`reckon predict rl`."""

    def run(file: Path, calibration: str, json: str | None) -> int:
        from reckon.console.files import write_json
        from reckon.verbs.rl import predict_rl
        from reckon.views.rl import show_rl

        found = predict_rl(file, calibration)
        if json:
            write_json(json, found.to_dict())
        if json != "-":
            show_rl(found)
        return 0

    return Paneled(
        "rl",
        callback=run,
        params=[argument("file", "RL.yaml", type=Path), calibration_option(), json_option()],
        help="An iteration of reinforcement learning: rollouts and training on accelerators that "
        "they share or split. RL.yaml has model, system, gpus, prompts, samples, lengths, batch, "
        "and keys of both plans under serve and train.",
        epilog=EXAMPLE,
    )
