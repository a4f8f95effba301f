"""The convolution in torch."""

import torch
from torch import nn

from lab_plugin.conv import WIDTH


class Affine(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.scale = nn.Parameter(torch.empty(size, dtype=torch.float64))
        self.shift = nn.Parameter(torch.empty(size, dtype=torch.float64))

    def forward(self, x):
        return x * self.scale + self.shift


class Convolution(nn.Conv1d):
    """From (…, length) to (…, channels * positions)."""

    def forward(self, x):
        return super().forward(x.reshape(-1, 1, x.shape[-1])).reshape(*x.shape[:-1], -1)


class ConvTorch:
    def __init__(self, family):
        self._family = family

    def outputs(self, spec, params, obs):
        scale, shift, kernel, bias, weight, last = self._family.tensors(spec, params).values()
        windows = (obs * scale.unsqueeze(-2) + shift.unsqueeze(-2)).unfold(-1, WIDTH, 1)
        x = windows @ kernel[..., 0, :].transpose(-1, -2).unsqueeze(-3)
        x = torch.tanh(x.transpose(-1, -2) + bias[..., None, :, None]).flatten(-2)
        return x @ weight.transpose(-1, -2) + last.unsqueeze(-2)

    def module(self, spec):
        meta = {"device": "meta", "dtype": torch.float64}
        outputs, inputs = self._family.shapes(spec)["net.3.weight"]
        return nn.Sequential(
            Affine(spec.obs_dim),
            Convolution(1, spec.hidden[0], WIDTH, **meta).to_empty(device="cpu"),
            nn.Tanh(),
            nn.Linear(inputs, outputs, **meta).to_empty(device="cpu"),
        )
