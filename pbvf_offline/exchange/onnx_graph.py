"""One policy as an ONNX graph, built node by node: no tracing, and onnx alone is needed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.errors import UsageError
from pbvf_offline.exchange.tensors import ExportType, policy_tensors, summary
from pbvf_offline.policies.policy import BoxActions, Policies

OPSET = 17
IR_VERSION = 8
INPUT = "obs"
OUTPUT = "action"


def encode_onnx(policies: Policies, dtype: ExportType = "float64") -> bytes:
    """Return the bytes of an ONNX model of a single policy.

    Input ``obs`` (batch, obs_dim), raw, of type ``dtype``; output ``action`` (batch, act_dim) in
    the action's own dtype, discrete: (batch,) int64. Normaliser, squashing, scaling and clipping
    are nodes of the graph. A stochastic policy acts by its mean, or its most likely choice.

    Args:
        policies: One policy.
        dtype: What the graph takes and computes in.

    Raises:
        UsageError: onnx is not installed.
    """
    try:
        import onnx
        from onnx import helper, numpy_helper
    except ImportError as error:
        raise UsageError(
            "onnx is not installed, which writes such files",
            where="--format onnx",
            remedy="pip install 'pbvf-offline[onnx]'",
        ) from error

    spec = policies.spec
    tensors = policy_tensors(policies, dtype)
    nodes: list[Any] = []
    constants: list[Any] = []

    def number(name: str, array: NDArray[Any]) -> str:
        constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def node(kind: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        output = output or f"{kind.lower()}_{len(nodes)}"
        nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    x = node("Sub", INPUT, number("obs_mean", tensors["obs_mean"]))
    x = node("Div", x, number("obs_std", tensors["obs_std"]))
    last = len(spec.layers) - 1
    for k in range(len(spec.layers)):
        name = f"net.{2 * k}"
        x = node("MatMul", x, number(f"{name}.weight", tensors[f"{name}.weight"].T))
        x = node("Add", x, number(f"{name}.bias", tensors[f"{name}.bias"]))
        if k < last:
            x = node("Tanh", x)

    def kind_of(name: str) -> int:
        return int(helper.np_dtype_to_tensor_dtype(np.dtype(name)))

    shape: list[str | int]
    if isinstance(spec.actions, BoxActions):
        low, high = tensors["action_low"], tensors["action_high"]
        if spec.squash == "tanh":
            one = np.ones(1, low.dtype)
            x = node("Add", node("Tanh", x), number("one", one))
            x = node("Mul", x, number("half_range", (high - low) / 2))
            x = node("Add", x, number("action_low", low))
        # Clipped in the wider of both types, in which the bounds are exact.
        wide = np.promote_types(dtype, spec.actions.dtype)
        if wide != np.dtype(dtype):
            x = node("Cast", x, to=kind_of(wide.name))
        x = node("Max", x, number("minimum", np.array(spec.actions.low, wide)))
        x = node("Min", x, number("maximum", np.array(spec.actions.high, wide)))
        node("Cast", x, to=kind_of(spec.actions.dtype), output=OUTPUT)
        kind, shape = kind_of(spec.actions.dtype), ["batch", spec.actions.dim]
    else:
        x = node("ArgMax", x, axis=-1, keepdims=0)
        node("Add", x, number("action_start", tensors["action_start"]), output=OUTPUT)
        kind, shape = kind_of("int64"), ["batch"]
    graph = helper.make_graph(
        nodes,
        "policy",
        [helper.make_tensor_value_info(INPUT, kind_of(dtype), ["batch", spec.obs_dim])],
        [helper.make_tensor_value_info(OUTPUT, kind, shape)],
        constants,
    )
    model = helper.make_model(
        graph,
        producer_name="pbvf-offline",
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET)],
        doc_string=summary(spec),
    )
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString(deterministic=True))
