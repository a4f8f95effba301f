"""Multilayer perceptrons: linear layers with one activation between them.

Layout of the parameters: layer by layer the weight (out, in) row by row and the bias (out), which
is the order of PyTorch's ``parameters_to_vector``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pbvf_offline.policies.families.base import (
    F32,
    F64,
    BatchForward,
    FloatArray,
    Forward,
    Graph,
    PolicyFamily,
    StackedForward,
)

if TYPE_CHECKING:
    from pbvf_offline.policies.spec import PolicySpec


@dataclass(frozen=True)
class Activation:
    """What lies between the layers.

    Attributes:
        name: The function's name in ``torch``.
        apply: The numpy function ``apply(x, out)``.
        bounded: Whether its values are in [-1, 1].
        module: The module's name in ``torch.nn``.
        onnx: The ONNX operator.
    """

    name: str
    apply: Callable[[NDArray[Any], NDArray[Any]], object]
    bounded: bool
    module: str
    onnx: str


class MLP(PolicyFamily):
    """Linear layers with an activation between them; without hidden sizes, one linear layer.

    Args:
        name: The family's name.
        activation: What lies between the layers.
    """

    torch_form = "pbvf_offline.policies.families.mlp_torch:MLPTorch"

    def __init__(self, name: str, activation: Activation) -> None:
        self.name = name
        self.activation = activation

    # ------------------------------------------------------------- layout and fresh values

    def shapes(self, spec: PolicySpec) -> tuple[tuple[int, int], ...]:
        """Return ``(out, in)`` of each layer in order."""
        sizes = (spec.obs_dim, *spec.hidden, spec.actions.outputs)
        return tuple((sizes[k + 1], sizes[k]) for k in range(len(sizes) - 1))

    def size(self, spec: PolicySpec) -> int:
        """Return the number of weights and biases."""
        return sum(out * (inp + 1) for out, inp in self.shapes(spec))

    def layers(self, spec: PolicySpec, params: Any) -> list[tuple[Any, Any]]:
        """Return views ``(weight (…, out, in), bias (…, out))`` of an array or tensor (…, n)."""
        lead, start, layers = params.shape[:-1], 0, []
        for out, inp in self.shapes(spec):
            middle = start + out * inp
            weight = params[..., start:middle].reshape(*lead, out, inp)
            start = middle + out
            layers.append((weight, params[..., middle:start]))
        return layers

    def join(self, layers: Iterable[tuple[NDArray[Any], NDArray[Any]]]) -> NDArray[Any]:
        """Return the parameters (n,) of layers ``(weight (out, in), bias (out,))``."""
        return np.concatenate([part.ravel() for layer in layers for part in layer])

    def initial(self, spec: PolicySpec, rng: np.random.Generator) -> F64:
        """Draw by PyTorch's default for ``nn.Linear``: uniform on ``[-1/sqrt(in), 1/sqrt(in)]``."""
        parts = []
        for out, inp in self.shapes(spec):
            bound = 1.0 / math.sqrt(inp)
            parts.append(rng.uniform(-bound, bound, size=out * inp))
            parts.append(rng.uniform(-bound, bound, size=out))
        return np.concatenate(parts)

    def renormalise(
        self, spec: PolicySpec, params: F32, rows: NDArray[np.int64], scale: F64, shift: F64
    ) -> None:
        """Change the first layer, which is affine: ``W' = W * scale``, ``b' = b + W shift``."""
        out, inp = self.shapes(spec)[0]
        # Only the first layer changes, and deep policies are wide.
        first = slice(0, out * inp + out)
        wide = params[rows, first].astype(np.float64)
        weight = wide[..., : out * inp].reshape(-1, out, inp)
        wide[..., out * inp :] += np.einsum("koi,ki->ko", weight, shift)
        wide[..., : out * inp] = (weight * scale[:, None, :]).reshape(-1, out * inp)
        params[rows, first] = wide.astype(np.float32)

    # -------------------------------------------------------------------- acting, in numpy

    def forward(self, spec: PolicySpec, params: F64, mean: F64, std: F64) -> Forward:
        """Return the network with the normaliser folded into its first layer, once."""
        folded = self.folded(spec, params, mean, std)
        chain = [(np.ascontiguousarray(w), np.ascontiguousarray(b)) for w, b in folded]
        last, activate = len(chain) - 1, self.activation.apply

        def outputs(obs: NDArray[Any]) -> F64:
            x: F64 = obs  # a float64 product follows, whatever the dtype of obs
            for k, (weight, bias) in enumerate(chain):
                x = weight.dot(x)  # faster than @ for arrays this small
                x += bias
                if k < last:
                    activate(x, x)
            return x

        return outputs

    def folded(self, spec: PolicySpec, params: F64, mean: F64, std: F64) -> list[tuple[F64, F64]]:
        """Return the layers ``(weight, bias)`` of a network that takes raw observations."""
        layers = self.layers(spec, params)
        weight, bias = layers[0]
        first = np.ascontiguousarray(weight * (1.0 / std))
        layers[0] = (first, bias - first @ mean)
        return layers

    def stacked(self, spec: PolicySpec, rows: int) -> StackedForward:
        """Return networks whose products are made in one call for all rows."""
        return _Stack(self, spec, rows)

    def batch_forward(self, spec: PolicySpec, params: F32, mean: F64, std: F64) -> BatchForward:
        """Return the networks; their first layer always computes in float64.

        What that layer sums up may be large and cancel, while the others see values of the
        activation.
        """
        return _Batch(self.layers(spec, params), mean, std, self.activation)

    def width(self, spec: PolicySpec) -> int:
        """Return the size of the widest layer."""
        return max(spec.obs_dim, spec.actions.outputs, *spec.hidden)

    def single_precision(self, spec: PolicySpec) -> bool:
        """With hidden layers that see numbers between -1 and 1."""
        return self.activation.bounded and len(spec.hidden) > 0

    # ------------------------------------------------------------------------- relabelling

    def last_layer(self, spec: PolicySpec) -> NDArray[np.int64]:
        """Return the positions of the last linear layer."""
        out, inp = self.shapes(spec)[-1]
        start = self.size(spec) - out * (inp + 1)
        weights = start + np.arange(out * inp).reshape(out, inp)
        biases = start + out * inp + np.arange(out)
        return np.concatenate([weights, biases[:, None]], axis=1)

    def features(self, spec: PolicySpec, params: F64, obs: F64) -> F64:
        """Return the values of the last hidden layer."""
        x = obs
        for weight, bias in self.layers(spec, params)[:-1]:
            x = x @ weight.T + bias
            self.activation.apply(x, x)
        return x

    # ------------------------------------------------------------------ for other programs

    def summary(self, spec: PolicySpec) -> str:
        """Return the activation and all sizes."""
        sizes = (spec.obs_dim, *spec.hidden, spec.actions.outputs)
        return f"{self.activation.name} network {' - '.join(map(str, sizes))}"

    def tensors(self, spec: PolicySpec, params: FloatArray) -> dict[str, FloatArray]:
        """Return ``net.0.weight``, ``net.0.bias``, ``net.2.weight``, … as of a ``Sequential``."""
        return {
            f"net.{2 * k}.{name}": array
            for k, layer in enumerate(self.layers(spec, params))
            for name, array in zip(("weight", "bias"), layer, strict=True)
        }

    def recipe(self, spec: PolicySpec) -> list[str]:
        """Return one line a layer."""
        lines = [
            f'x @ w["net.{2 * k}.weight"].T + w["net.{2 * k}.bias"]'
            for k in range(len(spec.hidden) + 1)
        ]
        hidden = [f"x = torch.{self.activation.name}({line})" for line in lines[:-1]]
        return [*hidden, f"x = {lines[-1]}"]

    def onnx(
        self, spec: PolicySpec, graph: Graph, tensors: Mapping[str, NDArray[Any]], x: str
    ) -> str:
        """Add a product, a sum and an activation for each layer."""
        for k in range(len(spec.hidden) + 1):
            if k:
                x = graph.node(self.activation.onnx, x)
            weight, bias = f"net.{2 * k}.weight", f"net.{2 * k}.bias"
            x = graph.node("MatMul", x, graph.constant(weight, tensors[weight].T))
            x = graph.node("Add", x, graph.constant(bias, tensors[bias]))
        return x


class _Stack:
    """Networks in rows."""

    def __init__(self, family: MLP, spec: PolicySpec, rows: int) -> None:
        self._family, self._spec = family, spec
        self._layers = [
            (np.zeros((rows, out, inp)), np.zeros((rows, out))) for out, inp in family.shapes(spec)
        ]

    def place(self, row: int, params: F64, mean: F64, std: F64) -> None:
        layers = self._family.folded(self._spec, params, mean, std)
        for (weights, biases), (weight, bias) in zip(self._layers, layers, strict=True):
            weights[row], biases[row] = weight, bias

    def __call__(self, obs: F64) -> F64:
        x, last, activate = obs, len(self._layers) - 1, self._family.activation.apply
        for k, (weights, biases) in enumerate(self._layers):
            # A stack of matrices times vectors is one BLAS call a row, as in ``forward``; a
            # product of matrices, or einsum, would add up in another order.
            x = np.matmul(weights, x[:, :, np.newaxis])[:, :, 0]
            x += biases
            if k < last:
                activate(x, x)
        return x


class _Batch:
    """Networks of many policies, each applied to many observations at once."""

    def __init__(
        self,
        layers: list[tuple[F32, F32]],
        mean: F64,
        std: F64,
        activation: Activation,
    ) -> None:
        self._layers = layers  # views, nothing is copied
        self._mean, self._std = mean, std
        self._activation = activation
        self._rooms: dict[tuple[str, np.dtype[Any]], NDArray[Any]] = {}

    def __call__(self, rows: list[int], obs: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
        # In order, as they nearly always are, they need not be copied.
        in_order = rows == list(range(rows[0], rows[0] + len(rows)))
        which = slice(rows[0], rows[0] + len(rows)) if in_order else rows
        weight, bias = self._layers[0]
        folded = weight[which] / self._std[which, np.newaxis]
        shift = np.matmul(folded, self._mean[which, :, np.newaxis])[..., 0]
        x = self._layer(0, self._converted("observations", obs, np.float64), folded)
        x += (bias[which] - shift)[:, np.newaxis]
        for k, (weight, bias) in enumerate(self._layers[1:], 1):
            x = self._converted("input", x, dtype)
            self._activation.apply(x, x)
            x = self._layer(k, x, self._converted("weights", weight[which], dtype))
            x += bias[which, np.newaxis]
        return x

    def _layer(self, k: int, x: NDArray[Any], weights: NDArray[Any]) -> NDArray[Any]:
        """Return x (P, N, inputs) times weights (P, outputs, inputs), in an array that stays."""
        y = self._room(f"outputs {k}", (*x.shape[:2], weights.shape[1]), x.dtype)
        np.matmul(x, weights.swapaxes(1, 2), out=y)
        return y

    def _converted(self, name: str, values: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
        """Return values in a dtype, themselves where they have it."""
        if values.dtype == dtype:
            return values
        room = self._room(name, values.shape, dtype)
        room[:] = values
        return room

    def _room(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return an array to write to, cut from one that stays: a new one has no pages yet,
        and to get them takes as long as the arithmetic.
        """  # noqa: D205
        key, size = (name, np.dtype(dtype)), math.prod(shape)
        room = self._rooms.get(key)
        if room is None or len(room) < size:
            room = self._rooms[key] = np.empty(size, dtype)
        return room[:size].reshape(shape)


def _relu(x: NDArray[Any], out: NDArray[Any]) -> None:
    np.maximum(x, 0.0, out=out)


_TANH = Activation("tanh", np.tanh, bounded=True, module="Tanh", onnx="Tanh")
_RELU = Activation("relu", _relu, bounded=False, module="ReLU", onnx="Relu")

TANH_MLP: Final = MLP("tanh-mlp", _TANH)
RELU_MLP: Final = MLP("relu-mlp", _RELU)
