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
    stretch   time of the update over that of a fused Adam that moves as much
    worked    exponentials that take as long as the update of a parameter, where memory does not
    """

    moments: float
    narrow: bool = False
    more: float = 0.0
    stretch: float = 1.0
    worked: float = 0.0


ADAM = 8.0
"""Bytes of Adam's two moments in fp32."""

OPTIMIZERS: dict[str, Optimizer] = {
    "adam": Optimizer(ADAM),
    "adam8bit": Optimizer(2.03, narrow=True, worked=70.0),
    "lion": Optimizer(4.0, narrow=True, stretch=1.5),
    "sgd": Optimizer(4.0),
    "adafactor": Optimizer(0.01, narrow=True, more=92.0, stretch=1.2),
    "muon": Optimizer(4.0),
}
"""Adam; in 8 bits, with an fp32 scale for 256 of each moment (bitsandbytes' AdamW8bit, blocks of
256; Dettmers et al. 2022), which looks for the code of each; Lion and SGD keep a momentum, Lion in
fp32 (bitsandbytes); Adafactor keeps means of rows and columns (Shazeer & Stern 2018), in kernels of
its own: gradient and weight widened (6 each), the square and what is added to it (8 each), two
means of it (4 each), their outer product (4) and its product with the gradient (12), its norm (4),
two scalings (8 each), the sign (8), the sum (12) and the weight narrowed (6; transformers,
optimization.py: `Adafactor.step`, weights in 16 bits); Muon keeps a momentum that it makes
orthogonal (`work.orthogonal`). How long they work or are stretched was read off traces of steps on
an H200 (bitsandbytes 0.50, Transformers 5.17): 29 ns for a thousand parameters of AdamW8bit, 7.9 of
Lion, 37 of Adafactor, where PyTorch's fused AdamW takes 5.2."""

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
