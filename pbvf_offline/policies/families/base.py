"""What a policy family says of its networks.

A network maps normalised observations ``(obs - mean) / std`` to ``spec.actions.outputs`` numbers.
Squashing, bounds, discrete choices and noise are the same for all families and stand elsewhere.
``params`` (…, n) below is theta without the leading ``log_std``, which is no part of the network,
and observations are normalised unless they are called raw.

This module and those of the families import neither torch nor onnx, since workers that roll
policies out never do. A family's torch form stands in a module of its own, which
:attr:`PolicyFamily.torch_form` names.
"""

from __future__ import annotations

import abc
import functools
import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from pbvf_offline.policies.spec import PolicySpec

FloatArray = NDArray[np.floating[Any]]
F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
Forward = Callable[[NDArray[Any]], F64]
BatchForward = Callable[[list[int], NDArray[Any], DTypeLike], NDArray[Any]]


class StackedForward(Protocol):
    """Networks of one kind in rows, each of which acts on the observation of its row."""

    def place(self, row: int, params: F64, mean: F64, std: F64) -> None:
        """Put a network with parameters (n,) and a normaliser (obs_dim,) into a row."""

    def __call__(self, obs: F64) -> F64:
        """Return outputs (rows, outputs), a new array, of raw observations (rows, obs_dim).

        Every row that has a network has the bits that :meth:`PolicyFamily.forward` gives.
        """


class Graph(Protocol):
    """An ONNX graph that is being written."""

    def constant(self, name: str, array: NDArray[Any]) -> str:
        """Add a constant and return its name."""

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output and return that output's name."""


class TorchForm(Protocol):
    """The torch form of a family. Made with the family as its argument."""

    def outputs(self, spec: PolicySpec, params: Tensor, obs: Tensor) -> Tensor:
        """Return outputs (…, S, outputs) of params (…, n), differentiable in params and obs.

        obs are (…, S, obs_dim), S states for each row of params; leading axes broadcast.
        """

    def module(self, spec: PolicySpec) -> torch.nn.Module:
        """Return a float64 module from normalised observations (…, obs_dim) to (…, outputs).

        Its parameters hold anything; as the attribute ``net`` of another module it has the names
        of :meth:`PolicyFamily.tensors`. Torch's global generator is left as it is.
        """


class PolicyFamily(abc.ABC):
    """The networks of one kind, their sizes given by a spec.

    Attributes:
        name: As files and ``--family`` have it.
        torch_form: The :class:`TorchForm`, as ``module:attribute``.
    """

    name: str
    torch_form: str

    @functools.cached_property
    def torch(self) -> TorchForm:
        """The torch form; torch is imported with it."""
        module, _, attribute = self.torch_form.partition(":")
        form: TorchForm = getattr(importlib.import_module(module), attribute)(self)
        return form

    # ------------------------------------------------------------- layout and fresh values

    @abc.abstractmethod
    def size(self, spec: PolicySpec) -> int:
        """Return n, the number of the network's parameters.

        Raises:
            UsageError: The family has no network of these sizes.
        """

    @abc.abstractmethod
    def initial(self, spec: PolicySpec, rng: np.random.Generator) -> F64:
        """Draw fresh parameters (n,)."""

    @abc.abstractmethod
    def renormalise(
        self, spec: PolicySpec, params: F32, rows: NDArray[np.int64], scale: F64, shift: F64
    ) -> None:
        """Change R rows of params (K, n) in place, so that they act on ``x'`` as before on ``x``.

        ``x = scale * x' + shift``, with a positive scale (R, obs_dim) and shift (R, obs_dim).
        """

    # -------------------------------------------------------------------- acting, in numpy

    @abc.abstractmethod
    def forward(self, spec: PolicySpec, params: F64, mean: F64, std: F64) -> Forward:
        """Return the function that acts: raw (obs_dim,) of any dtype to outputs (outputs,).

        It has the parameters (n,) and a normaliser's mean and std (obs_dim,). It computes in
        float64, returns a new array and leaves its argument as it is.
        """

    def stacked(self, spec: PolicySpec, rows: int) -> StackedForward:
        """Return the same function for networks in rows; what they give has the same bits.

        A family whose networks can be stacked replaces this, which calls them one by one.
        """
        return _OneByOne(self, spec, rows)

    @abc.abstractmethod
    def batch_forward(self, spec: PolicySpec, params: F32, mean: F64, std: F64) -> BatchForward:
        """Return the same function for many policies and observations at once.

        It has the parameters (K, n) of K policies and their mean and std (K, obs_dim). It takes
        the rows of P of them, raw observations (P, N, obs_dim) and the dtype to compute in, and
        returns outputs (P, N, outputs), which the next call may overwrite.
        """

    @abc.abstractmethod
    def width(self, spec: PolicySpec) -> int:
        """Return the most numbers that the network holds at once for one observation."""

    @abc.abstractmethod
    def single_precision(self, spec: PolicySpec) -> bool:
        """Whether ``batch_forward`` may be asked for float32 first.

        Only where it is quicker and its errors are alike in all observations of a policy, so
        that a few of them, computed in float64 too, tell of all.
        """

    # ------------------------------------------------------------------------- relabelling

    @abc.abstractmethod
    def last_layer(self, spec: PolicySpec) -> NDArray[np.int64]:
        """Return (outputs, F) positions in params: each output's weights, then its bias.

        Outputs are linear in these: weights times :meth:`features`, plus the bias.
        """

    @abc.abstractmethod
    def features(self, spec: PolicySpec, params: F64, obs: F64) -> F64:
        """Return what the last layer of params (n,) sees in obs (N, obs_dim), (N, F - 1)."""

    # ------------------------------------------------------------------ for other programs

    @abc.abstractmethod
    def summary(self, spec: PolicySpec) -> str:
        """Return what the network is, with its sizes: ``tanh network 3 - 8 - 1``."""

    @abc.abstractmethod
    def tensors(self, spec: PolicySpec, params: FloatArray) -> dict[str, FloatArray]:
        """Return params (n,) as named arrays; the names start with ``net.``."""

    @abc.abstractmethod
    def recipe(self, spec: PolicySpec) -> list[str]:
        """Return lines of torch that turn ``x`` (…, obs_dim) into the outputs, also called ``x``.

        The tensors are in a dict ``w`` under their names.
        """

    @abc.abstractmethod
    def onnx(
        self, spec: PolicySpec, graph: Graph, tensors: Mapping[str, NDArray[Any]], x: str
    ) -> str:
        """Add the network to an ONNX graph of opset 17; return its outputs' name.

        ``x`` names normalised observations (batch, obs_dim), the outputs are (batch, outputs), and
        ``tensors`` is what :meth:`tensors` gave, in the type to compute in.
        """


class _OneByOne:
    """Networks in rows of any family."""

    def __init__(self, family: PolicyFamily, spec: PolicySpec, rows: int) -> None:
        self._family, self._spec = family, spec
        self._networks: list[Forward | None] = [None] * rows

    def place(self, row: int, params: F64, mean: F64, std: F64) -> None:
        self._networks[row] = self._family.forward(self._spec, params, mean, std)

    def __call__(self, obs: F64) -> F64:
        outputs = np.zeros((len(obs), self._spec.actions.outputs))
        for row, network in enumerate(self._networks):
            if network is not None:
                outputs[row] = network(obs[row])
        return outputs
