"""What the terminal shows of iterations of reinforcement learning."""

from __future__ import annotations

from reckon.verbs.rl import PostTraining
from reckon.views.terminal import grid, seconds, strong


def show_rl(found: PostTraining, top: int = 5) -> None:
    """Print the shortest iterations, and the shortest of each kind."""
    of = found.rollouts
    print(
        f"{strong(found.model)} on {found.gpus} accelerators ({found.system}): {of.prompts} "
        f"prompts x {of.samples} answers of {of.output_len} tokens, +-{of.variation:.0%}, "
        f"log-normal; {of.answers / of.batch:g} optimizer steps\n"
    )
    kinds = dict.fromkeys(one.way for one in found.ways)
    shown = [*found.ways[:top], *(found.best(way) for way in kinds)]
    rows = [
        [
            one.way,
            f"{one.rollout_gpus} ({one.engines} x)",
            f"{one.training_gpus}",
            seconds(one.rollout),
            seconds(one.tail),
            seconds(one.training),
            seconds(one.weights),
            seconds(one.time),
            f"{one.idle:.0%}",
        ]
        for one in dict.fromkeys(one for one in shown if one is not None)
    ]
    columns = ["accelerators", "roll out", "train", "rollouts", "last tenth", "training"]
    print(grid([*columns, "weights", "iteration", "idle"], rows, 1))
    best = found.ways[0]
    waits = "rollouts" if best.rollout > best.training else "training"
    print(f"\nbest: {best.way}; {waits} take longer; {best.idle:.0%} of the time is idle")
