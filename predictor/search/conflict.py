"""Why no plan of a space is possible: the fewest laws that together exclude all of them."""

from __future__ import annotations

import numpy as np

from predictor.plans import Rule, TrainingPlan


class Conflict:
    """Why no plan of a space is possible: the fewest laws and conditions that together exclude all
    of them."""

    def __init__(self) -> None:
        self.patterns: set[frozenset[str]] = set()
        self.values: dict[str, set[float]] = {}
        self.laws: dict[str, Rule] = {}

    def note(self, laws: list[Rule], plan: TrainingPlan) -> None:
        """Take in a batch of which every plan breaks a law."""
        masks = np.stack([np.broadcast_to(law.broken, plan.shape) for law in laws])
        for pattern in np.unique(masks, axis=1).T:
            self.patterns.add(frozenset(laws[at].message for at in np.flatnonzero(pattern)))
        for law in laws:
            self.laws[law.message] = law
            for name in law.fields:
                values = np.unique(np.asarray(getattr(plan, name), float))
                self.values.setdefault(name, set()).update(values.tolist())

    def message(self) -> str:
        """One line that names them."""
        from itertools import combinations

        every = sorted(
            {name for pattern in self.patterns for name in pattern},
            key=lambda message: (self._follows(message), message),
        )
        for size in range(1, 4):
            for some in combinations(every, size):
                if all(pattern & set(some) for pattern in self.patterns):
                    told = "; ".join(self._told(message) for message in some)
                    if size == 1:
                        return f"no plan is possible: {told}"
                    return f"no plan is possible, every one breaks one of these: {told}"
        told = "; ".join(self._told(message) for message in every)
        return f"no plan is possible, every one breaks one of these: {told}"

    def _follows(self, message: str) -> bool:
        """Whether a law speaks of numbers that are not whole: what broke them says more."""
        return any(value % 1.0 for name in self.laws[message].fields for value in self.values[name])

    def _told(self, message: str) -> str:
        named = {}
        for name in self.laws[message].fields:
            values = sorted(self.values[name])
            some = [f"{value:g}" for value in values[:4]]
            named[name] = " or ".join(some) + (" or more" if len(values) > 4 else "")
        text = message.format(**named)
        first = self.laws[message].fields[0]
        text = f"{first} {text}" if text.startswith(named[first]) else text
        alone = [self.values[name] for name in self.laws[message].fields]
        near = ""
        if all(len(values) == 1 for values in alone):
            near = self.laws[message].nearest(*(next(iter(values)) for values in alone))
        return f"{text}; nearest {near}" if near else text
