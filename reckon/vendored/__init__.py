"""Files of others that pages bring along: plotly.js, basic bundle 4.1.1 (MIT; npm
`plotly.js-basic-dist-min`), by which reports and the explorer draw without a network.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

PLOTLY = Path(__file__).resolve().parent / "plotly-basic.min.js"


@lru_cache(maxsize=1)
def plotly_script() -> str:
    """plotly.js as text."""
    return PLOTLY.read_text(encoding="utf-8")
