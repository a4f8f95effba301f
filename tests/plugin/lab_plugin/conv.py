"""A family of policies: a convolution over the observation vector, tanh, a linear layer.

Parameters: ``scale`` and ``shift`` (obs_dim) of the input, kernel (channels, WIDTH) and bias
(channels), weight (outputs, channels * positions) and bias (outputs). The input's own affine map
makes every policy expressible in another normaliser, which a kernel alone is not.
"""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from pbvf_offline.errors import UsageError
from pbvf_offline.policies.families.base import PolicyFamily

WIDTH = 3


class Conv(PolicyFamily):
    """The one hidden size is the number of channels."""

    name = "lab-conv"
    torch_form = "lab_plugin.conv_torch:ConvTorch"

    def shapes(self, spec):
        if len(spec.hidden) != 1 or spec.obs_dim < WIDTH:
            raise UsageError(f"lab-conv needs {WIDTH} observations and one number of channels")
        (channels,), outputs = spec.hidden, spec.actions.outputs
        return {
            "net.0.scale": (spec.obs_dim,),
            "net.0.shift": (spec.obs_dim,),
            "net.1.weight": (channels, 1, WIDTH),
            "net.1.bias": (channels,),
            "net.3.weight": (outputs, channels * (spec.obs_dim - WIDTH + 1)),
            "net.3.bias": (outputs,),
        }

    def size(self, spec):
        return sum(int(np.prod(shape)) for shape in self.shapes(spec).values())

    def initial(self, spec, rng):
        return rng.uniform(-0.6, 0.6, self.size(spec))

    def tensors(self, spec, params):
        start, parts = 0, {}
        for name, shape in self.shapes(spec).items():
            stop = start + int(np.prod(shape))
            parts[name] = params[..., start:stop].reshape(*params.shape[:-1], *shape)
            start = stop
        return parts

    def renormalise(self, spec, params, rows, scale, shift):
        n = spec.obs_dim
        own = params[rows, :n].astype(np.float64)
        params[rows, n : 2 * n] += own * shift
        params[rows, :n] = own * scale

    def features(self, spec, params, obs):
        scale, shift, kernel, bias, _, _ = self.tensors(spec, params).values()
        x = obs * scale[..., None, :] + shift[..., None, :]
        windows = sliding_window_view(x, WIDTH, axis=-1)
        x = np.einsum("...nlw,...cw->...ncl", windows, kernel[..., 0, :])
        x = np.tanh(x + bias[..., None, :, None])
        return x.reshape(*x.shape[:-2], -1)

    def batch_forward(self, spec, params, mean, std):
        def outputs(rows, obs, dtype):
            own = params[rows].astype(dtype)
            normal = ((obs - mean[rows, None]) / std[rows, None]).astype(dtype)
            *_, weight, bias = self.tensors(spec, own).values()
            return self.features(spec, own, normal) @ weight.swapaxes(-1, -2) + bias[:, None]

        return outputs

    def forward(self, spec, params, mean, std):
        batch = self.batch_forward(spec, params[None], mean[None], std[None])
        return lambda obs: batch([0], obs[None, None], np.float64)[0, 0]

    def width(self, spec):
        return spec.hidden[0] * spec.obs_dim * WIDTH

    def single_precision(self, spec):
        return False

    def last_layer(self, spec):
        outputs, inputs = self.shapes(spec)["net.3.weight"]
        at = self.size(spec) - outputs * (inputs + 1)
        weights = at + np.arange(outputs * inputs).reshape(outputs, inputs)
        biases = at + outputs * inputs + np.arange(outputs)[:, None]
        return np.concatenate([weights, biases], axis=1)

    def summary(self, spec):
        return f"convolution with {spec.sizes} channels"

    def recipe(self, spec):
        return [
            'x = x * w["net.0.scale"] + w["net.0.shift"]',
            "y = x.reshape(-1, 1, x.shape[-1])",
            'y = torch.nn.functional.conv1d(y, w["net.1.weight"], w["net.1.bias"])',
            "x = torch.tanh(y).reshape(*x.shape[:-1], -1)",
            'x = x @ w["net.3.weight"].T + w["net.3.bias"]',
        ]

    def onnx(self, spec, graph, tensors, x):
        parts = (tensors[name] for name in self.shapes(spec))
        scale, shift, kernel, bias, weight, last = parts
        # The runtime has no float64 convolution, so it is a product with a band matrix.
        count = spec.obs_dim - WIDTH + 1
        band = np.zeros((spec.obs_dim, spec.hidden[0], count), kernel.dtype)
        for at in range(count):
            band[at : at + WIDTH, :, at] = kernel[:, 0].T
        x = graph.node("Mul", x, graph.constant("scale", scale))
        x = graph.node("Add", x, graph.constant("shift", shift))
        x = graph.node("MatMul", x, graph.constant("band", band.reshape(spec.obs_dim, -1)))
        x = graph.node("Add", x, graph.constant("bias", bias.repeat(count)))
        x = graph.node("MatMul", graph.node("Tanh", x), graph.constant("weight", weight.T))
        return graph.node("Add", x, graph.constant("last", last))


CONV = Conv()
