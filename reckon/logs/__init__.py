"""Logs of one's own runs: what training frameworks and benchmark clients write, read line by line.

read_log(path)     a training log, a table or event file of a tracker, or a benchmark's report
Follower           lines of one log as they come, as steps
row_of, rows_of    rows in the columns of `reckon validate`
"""

from reckon.logs.benches import Bench
from reckon.logs.forms import FORMS
from reckon.logs.lines import Follower
from reckon.logs.reading import FORMATS, read_log
from reckon.logs.rows import rows_of
from reckon.logs.steps import Figures, Log, LoggedStep, figures

__all__ = [
    "FORMATS",
    "FORMS",
    "Bench",
    "Figures",
    "Follower",
    "Log",
    "LoggedStep",
    "figures",
    "read_log",
    "rows_of",
]
