"""What launchers and collectors of logs write before every line of a job: who speaks, and when.

Sources of the forms (read November 2026, as public code and logs have them): `srun --label`;
pytorch/pytorch `torch/distributed/elastic/multiprocessing` (`[default0]:`, and with `--role`
`[rank0]:`); Open MPI's `--tag-output`; ray-project/ray and skypilot-org/skypilot (`(name pid=7)`);
kubectl's `--timestamps` and `--prefix`, the files of containers in Kubernetes (`stdout F`); docker
compose; journald; moreutils' `ts`. DeepSpeed's launcher starts `pdsh`, which writes the host.
"""

from __future__ import annotations

import re
from dataclasses import field

from predictor.records import dataclass

STAMPED = (
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d) (?:std(?:out|err) [FP] )?"
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d (?=\S)"
)
SPOKEN = (
    r"\s*\d{1,6}: "
    r"|\[[A-Za-z_]\w*\d\]:"
    r"|\[\d+,\d+\]<std(?:out|err)>: ?"
    r"|\([^()]*\bpid=\d+[^()]*\) "
    r"|\[pod/[^\]\s]+\] "
    r"|[\w.-]+\s+\| "
    r"|[\w.-]+ [\w./-]+\[\d+\]: "
)
LABEL = re.compile(f"(?:{STAMPED}|{SPOKEN})+")
STAMPS = re.compile(STAMPED)
HOST = re.compile(r"[\w.-]+: (?=(?:\[\w+\] |\[(?:NeMo \w )?)20\d\d-\d\d-\d\d )")
"""A host before a line whose stamp shows that the line begins behind it."""


@dataclass(slots=True)
class Labels:
    """Takes labels off the lines of one log.

    hosts   labels of hosts that were seen, which stand before lines without a stamp, too
    """

    hosts: set[str] = field(default_factory=set)

    def apart(self, line: str) -> tuple[str, str]:
        """Who speaks, empty where nothing says so, and what."""
        label = LABEL.match(line)
        if label is not None:
            return STAMPS.sub("", label[0]).strip(), line[label.end() :]
        if host := HOST.match(line):
            self.hosts.add(host[0])
        head, colon, _ = line.partition(": ") if self.hosts else ("", "", "")
        said = head + colon
        return (said, line[len(said) :]) if said in self.hosts else ("", line)
