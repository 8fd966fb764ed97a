"""`reckon serve`: the explorer in a browser."""

from __future__ import annotations

import click

from reckon.console.flags import calibration_option, option, switch


@click.command(
    epilog="Example: reckon serve --port 8717",
    params=[
        option("port", "On 127.0.0.1.", "N", click.IntRange(1, 65535), default=8717),
        switch("open", "Open a browser, too."),
        calibration_option(),
    ],
)
def serve(port: int, calibration: str, **rest: bool) -> int:
    """The explorer: a page on this machine that predicts as you type."""
    from reckon.serve import serve

    serve(port, calibration, browser=rest["open"])
    return 0
