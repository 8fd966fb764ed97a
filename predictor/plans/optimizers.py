"""What an optimizer keeps of a parameter, and what its update moves."""

from __future__ import annotations

from predictor.records import dataclass


@dataclass(frozen=True, slots=True)
class Optimizer:
    """An optimizer beside Adam.

    moments   bytes of its moments where Adam's two have 32 bits each
    narrow    whether these are as wide whatever Adam's would be
    more      bytes of a parameter that its update moves beside states, gradient and weight, which
              a fused kernel reads and writes once
    """

    moments: float
    narrow: bool = False
    more: float = 0.0


ADAM = 8.0
"""Bytes of Adam's two moments in fp32."""

OPTIMIZERS: dict[str, Optimizer] = {
    "adam": Optimizer(ADAM),
    "adam8bit": Optimizer(2.03, narrow=True),
    "lion": Optimizer(4.0),
    "sgd": Optimizer(4.0),
    "adafactor": Optimizer(0.01, narrow=True, more=60.0),
    "muon": Optimizer(4.0),
}
"""Adam; in 8 bits, with an fp32 scale for 256 of each moment (bitsandbytes' AdamW8bit, blocks of
256; Dettmers et al. 2022); Lion and SGD keep a momentum; Adafactor keeps means of rows and columns
(Shazeer & Stern 2018), in kernels of its own: the square written and read for two means, their
outer product, its product with the gradient, its norm, two scalings and the sum (transformers,
optimization.py: `Adafactor.step`; from memory); Muon keeps a momentum that it makes orthogonal
(`work.orthogonal`)."""

OPTIMIZER_WORDS = {
    **dict.fromkeys(("adamw", "adamwtorch", "adamwtorchfused", "adamwhf", "fusedadam"), "adam"),
    **dict.fromkeys(("adamw8bit", "adamwbnb8bit", "pagedadamw8bit", "8bitadam"), "adam8bit"),
    **dict.fromkeys(("lion32bit", "pagedlion32bit"), "lion"),
    **dict.fromkeys(("distmuon", "moonshotmuon"), "muon"),
}
"""What else people call them."""


def states_of(optimizer: str, adams: float) -> float:
    """Bytes of an optimizer's states of a parameter, with the copy of a weight if there is one.

    adams   the same of Adam
    """
    one, moments = OPTIMIZERS[optimizer], min(adams, ADAM)
    own = one.moments if one.narrow else one.moments * moments / ADAM
    return adams - moments + min(own, moments)
