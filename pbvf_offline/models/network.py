"""Several networks of one shape in one batched multiplication."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn


class BatchedMLP(nn.Module):
    """M residual networks with SiLU and a linear skip from inputs to outputs.

    ``h_1 = silu(x W_1 + b_1)``, ``h_k = h_{k-1} + silu(h_{k-1} W_k + b_k)`` for layers of
    equal width (without the sum where the width changes), and
    ``y = h_n W + b + x V``. Weights are drawn as PyTorch's ``nn.Linear`` draws them.

    Args:
        members: Number M of networks.
        inputs: Width of the input.
        hidden: Sizes of the hidden layers, at least one.
        outputs: Width of the output.
        rng: Source of the initial weights.
        bfloat16: Multiply between hidden layers in bfloat16; all else is float32.
    """

    def __init__(
        self,
        members: int,
        inputs: int,
        hidden: tuple[int, ...],
        outputs: int,
        rng: np.random.Generator,
        *,
        bfloat16: bool = False,
    ) -> None:
        super().__init__()
        self._bfloat16 = bfloat16
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        sizes = (inputs, *hidden, outputs)
        for inp, out in itertools.pairwise(sizes):
            self.weights.append(_uniform(rng, inp, (members, inp, out)))
            self.biases.append(_uniform(rng, inp, (members, 1, out)))
        self.skip = _uniform(rng, inputs, (members, inputs, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs (M, B, outputs) of inputs (M, B, inputs)."""
        return self.members(slice(None))(x)

    def members(self, chosen: slice) -> Callable[[Tensor], Tensor]:
        """Return the function of some members, inputs (m, B, inputs) to outputs (m, B, outputs).

        Where several steps in a row are predicted it is to be made once: the gradient of each
        choice is as large as all members.
        """
        weights, biases = [w[chosen] for w in self.weights], [b[chosen] for b in self.biases]
        return functools.partial(self._outputs, weights, biases, self.skip[chosen])

    def _outputs(
        self, weights: Sequence[Tensor], biases: Sequence[Tensor], skip: Tensor, x: Tensor
    ) -> Tensor:
        h = x
        last = len(weights) - 1
        for k, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            if self._bfloat16 and 0 < k < last:
                out = torch.bmm(h.bfloat16(), weight.bfloat16()).float() + bias
            else:
                out = torch.baddbmm(bias, h, weight)
            if k == last:
                return torch.baddbmm(out, x, skip)
            out = nn.functional.silu(out)
            h = h + out if k > 0 and h.shape[-1] == out.shape[-1] else out
        raise AssertionError("unreachable: a network has an output layer")


def _uniform(rng: np.random.Generator, fan_in: int, shape: tuple[int, ...]) -> nn.Parameter:
    bound = 1.0 / math.sqrt(fan_in)
    return nn.Parameter(torch.from_numpy(rng.uniform(-bound, bound, shape).astype(np.float32)))
