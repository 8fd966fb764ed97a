"""The command line: flags, commands, exit status.

A command lives shortly: garbage in cycles is looked for every 100,000 objects, not every 700, which
takes a tenth off its start.
"""

import gc

gc.set_threshold(100_000, 20, 100)
