"""The critic's network: an MLP whose first layer sees theta and the rest side by side.

The first layer is affine, so its theta part and its state part can be computed apart
and added: once a theta instead of once a (state, theta) pair. Weights are drawn as
PyTorch's ``nn.Linear`` draws them for the concatenated input.

Networks of one shape can be stacked into one (:mod:`pbvf_offline.critics.stacked`): inputs are
then (M, B, width), and weights and biases have a member axis too.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pbvf_offline.setting_types import Precision

_ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh}


class SplitMLP(nn.Module):
    """MLP from (theta, obs, action) to one number, with the first layer in parts.

    Args:
        inputs: Widths of the parts by name, ``theta`` among them; zero widths are left out.
        hidden: Sizes of the hidden layers, at least one.
        activation: ``relu`` or ``tanh``.
        rng: Source of the initial weights.
    """

    def __init__(
        self,
        inputs: dict[str, int],
        hidden: tuple[int, ...],
        activation: str,
        rng: np.random.Generator,
    ) -> None:
        super().__init__()
        self._activation = _ACTIVATIONS[activation]
        self._precision: Precision = "float32"
        fan_in = sum(inputs.values())
        first = _uniform(rng, fan_in, (hidden[0], fan_in))
        self.first = nn.ParameterDict()
        at = 0
        for name, width in inputs.items():
            # Own memory for each part: slices of one weight would make zero-filled gradients.
            self.first[name] = nn.Parameter(torch.from_numpy(first[:, at : at + width].copy()))
            at += width
        self.first_bias = nn.Parameter(torch.from_numpy(_uniform(rng, fan_in, (hidden[0],))))
        sizes = (*hidden, 1)
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for inp, out in itertools.pairwise(sizes):
            self.weights.append(nn.Parameter(torch.from_numpy(_uniform(rng, inp, (out, inp)))))
            self.biases.append(nn.Parameter(torch.from_numpy(_uniform(rng, inp, (out,)))))

    def part(self, name: str, x: Tensor) -> Tensor:
        """Return what one part (…, width) adds to the first layer (…, hidden[0]), sans bias."""
        weight: Tensor = self.first[name]
        return x @ weight.t() if weight.dim() == 2 else torch.bmm(x, weight)

    @contextlib.contextmanager
    def in_precision(self, precision: Precision) -> Iterator[None]:
        """Multiply between hidden layers in a precision in the block; all else stays float32."""
        before, self._precision = self._precision, precision
        try:
            yield
        finally:
            self._precision = before

    def head(self, first: Tensor) -> Tensor:
        """Return the output (…) from the first layer's summed parts (…, hidden[0])."""
        x = self._activation(first + self.first_bias)
        last = len(self.weights) - 1
        for k, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if weight.dim() == 3:
                x = torch.baddbmm(bias, x, weight)
            elif k < last and self._precision == "bfloat16":
                layer = (part.bfloat16() for part in (x, weight, bias))
                x = nn.functional.linear(*layer)
            else:
                x = nn.functional.linear(x.to(weight.dtype), weight, bias)
            if k < last:
                x = self._activation(x)
        return torch.squeeze(x, -1)


def _uniform(rng: np.random.Generator, fan_in: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
    bound = 1.0 / math.sqrt(fan_in)
    return rng.uniform(-bound, bound, size=shape).astype(np.float32)
