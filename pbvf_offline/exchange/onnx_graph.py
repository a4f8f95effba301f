"""One policy as an ONNX graph, built node by node: no tracing, and onnx alone is needed."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.errors import UsageError
from pbvf_offline.exchange.state_dict import ExportType, policy_tensors, summary
from pbvf_offline.policies.actions import BoxActions
from pbvf_offline.policies.policy import Policies

OPSET = 17
IR_VERSION = 8
INPUT = "obs"
OUTPUT = "action"
PRODUCER = "pbvf-offline"


def onnx_package(where: str | os.PathLike[str], does: str) -> Any:
    """Return the package ``onnx``, which ``does`` such files.

    Raises:
        UsageError: It is not installed.
    """
    try:
        import onnx
    except ImportError as error:
        raise UsageError(
            f"onnx is not installed, which {does} such files",
            where=where,
            remedy="pip install 'pbvf-offline[onnx]'",
        ) from error
    return onnx


def encode_onnx(policies: Policies, dtype: ExportType = "float64") -> bytes:
    """Return the bytes of an ONNX model of a single policy.

    Input ``obs`` (batch, obs_dim), raw, of type ``dtype``, in which the graph computes; output
    ``action`` (batch, act_dim) in the action's own dtype, discrete: (batch,) int64. Normaliser,
    squashing, scaling and clipping are nodes of the graph. A stochastic policy acts by its mean, or
    its most likely choice.

    Raises:
        UsageError: onnx is not installed.
    """
    onnx = onnx_package("--format onnx", "writes")
    helper = onnx.helper
    spec = policies.spec
    tensors = policy_tensors(policies, dtype)
    graph = _Graph()
    x = graph.node("Sub", INPUT, graph.constant("obs_mean", tensors["obs_mean"]))
    x = graph.node("Div", x, graph.constant("obs_std", tensors["obs_std"]))
    x = spec.network.onnx(spec, graph, tensors, x)

    def kind_of(name: str) -> int:
        return int(helper.np_dtype_to_tensor_dtype(np.dtype(name)))

    shape: list[str | int]
    if isinstance(spec.actions, BoxActions):
        low, high = tensors["action_low"], tensors["action_high"]
        if spec.squash == "tanh":
            one = np.ones(1, low.dtype)
            x = graph.node("Add", graph.node("Tanh", x), graph.constant("one", one))
            x = graph.node("Mul", x, graph.constant("half_range", (high - low) / 2))
            x = graph.node("Add", x, graph.constant("action_low", low))
        # Clipped in the wider of both types, in which the bounds are exact.
        wide = np.promote_types(dtype, spec.actions.dtype)
        if wide != np.dtype(dtype):
            x = graph.node("Cast", x, to=kind_of(wide.name))
        x = graph.node("Max", x, graph.constant("minimum", np.array(spec.actions.low, wide)))
        x = graph.node("Min", x, graph.constant("maximum", np.array(spec.actions.high, wide)))
        graph.node("Cast", x, to=kind_of(spec.actions.dtype), output=OUTPUT)
        kind, shape = kind_of(spec.actions.dtype), ["batch", spec.actions.dim]
    else:
        x = graph.node("ArgMax", x, axis=-1, keepdims=0)
        graph.node("Add", x, graph.constant("action_start", tensors["action_start"]), output=OUTPUT)
        kind, shape = kind_of("int64"), ["batch"]
    made = helper.make_graph(
        graph.nodes,
        "policy",
        [helper.make_tensor_value_info(INPUT, kind_of(dtype), ["batch", spec.obs_dim])],
        [helper.make_tensor_value_info(OUTPUT, kind, shape)],
        graph.constants,
    )
    model = helper.make_model(
        made,
        producer_name=PRODUCER,
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET)],
        doc_string=summary(spec),
    )
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString(deterministic=True))


class _Graph:
    """Nodes and constants; see :class:`~pbvf_offline.policies.families.base.Graph`."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, name: str, array: NDArray[Any]) -> str:
        from onnx import numpy_helper

        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def node(self, kind: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        from onnx import helper

        output = output or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output
