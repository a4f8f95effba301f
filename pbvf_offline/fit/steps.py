"""Gradient steps: of one fit, or of several fits as one network."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from pbvf_offline.critics import Critic, TrainingSet
from pbvf_offline.critics.stacked import one_at_a_time, stack, stacked_critic, unstack
from pbvf_offline.curve import last_loss
from pbvf_offline.errors import DivergedError
from pbvf_offline.fit.settings import FitSettings
from pbvf_offline.policies.normaliser import Normaliser

MOMENTS = ("exp_avg", "exp_avg_sq")
RECORD_EVERY = 100
_REMEDY = "lower --lr (online: --lr-critic); the last good file was kept"
_TOO_LARGE = (
    "no step was taken yet, so rewards, observations or parameters are too large for single "
    "precision: scale the rewards, or take a smaller --sigma"
)


@dataclass
class Fit:
    """A critic in training.

    Attributes:
        settings: What decides the fit.
        online: The network that takes the gradient steps.
        averaged: The running average of its weights, when wanted.
        normaliser: The critic's normaliser.
        optimiser: Adam over the critic's weights.
        updates: Gradient steps done.
        record: ``(update, mean loss of the updates since the one before)``.
        pending: Losses since the last entry of the record.
        whole: False while an update is under way, when nothing may be saved.
    """

    settings: FitSettings
    online: Critic
    averaged: Critic | None
    normaliser: Normaliser
    optimiser: torch.optim.Adam
    updates: int = 0
    record: list[tuple[int, float]] = field(default_factory=list)
    pending: list[float] = field(default_factory=list)
    whole: bool = True

    @property
    def critic(self) -> Critic:
        """What the fit has come to: the averaged network, else the one that learns."""
        return self.online if self.averaged is None else self.averaged

    @property
    def loss(self) -> float | None:
        """Mean loss of the last recorded stretch."""
        return last_loss(self)


def make_optimiser(critic: Critic, lr: float) -> torch.optim.Adam:
    """Return Adam over a critic's weights; fused, which is the fastest on CPU and CUDA."""
    return torch.optim.Adam(critic.parameters(), lr=lr, fused=True)


def _average(averaged: Critic, online: Critic, decay: float, updates: int) -> None:
    """Move averaged weights towards the online ones.

    By ``max(1 - decay, 1 / (updates + 1))``: a plain mean at first, exponential later. The
    rule does not know how many updates will follow, so a fit can be extended.
    """
    weight = max(1.0 - decay, 1.0 / (updates + 1))
    with torch.no_grad():
        torch._foreach_lerp_(list(averaged.parameters()), list(online.parameters()), weight)


class Group:
    """Fits that take their gradient steps together, each the ones that it would take alone.

    One fit takes them itself. Several, which stand at the same update and differ in nothing but
    their seeds, are stacked: one network and one Adam take the steps, and the weights of the fits
    stay behind until :meth:`settle`.

    Args:
        fits: At least one.

    Raises:
        IncompatibleError: Such critics can only be fitted one at a time.
    """

    def __init__(self, fits: Sequence[Fit]) -> None:
        self.fits = list(fits)
        first = self.fits[0]
        self.online, self._averaged, self._optimiser = first.online, first.averaged, first.optimiser
        self._whole = True
        if len(self.fits) == 1:
            return
        self.online = stacked_critic([fit.online for fit in self.fits])
        averaged = [fit.averaged for fit in self.fits if fit.averaged is not None]
        self._averaged = stacked_critic(averaged) if averaged else None
        self._optimiser = make_optimiser(self.online, first.settings.lr)
        for weight, own in _beside(self.online, [fit.online for fit in self.fits]):
            states = [f.optimiser.state[w] for f, w in zip(self.fits, own, strict=True)]
            if states[0]:
                moments = {key: stack([state[key] for state in states]) for key in MOMENTS}
                self._optimiser.state[weight] = {"step": states[0]["step"].clone(), **moments}

    def settle(self) -> None:
        """Give the fits the weights and Adam's moments that the stacked network has come to."""
        if self.fits[0].whole or not self._whole:
            return
        with torch.no_grad():
            for weight, own in _beside(self.online, [fit.online for fit in self.fits]):
                _hand_out(weight, own)
                state = self._optimiser.state[weight]
                for fit, w in zip(self.fits, own, strict=True):
                    moments = {key: torch.empty_like(w) for key in MOMENTS}
                    fit.optimiser.state[w] = {"step": state["step"].clone(), **moments}
                for key in MOMENTS:
                    _hand_out(
                        state[key],
                        [f.optimiser.state[w][key] for f, w in zip(self.fits, own, strict=True)],
                    )
            if self._averaged is not None:
                members = [fit.averaged for fit in self.fits if fit.averaged is not None]
                for weight, own in _beside(self._averaged, members):
                    _hand_out(weight, own)
        for fit in self.fits:
            fit.whole = True

    def descend(self, loss: Tensor) -> dict[int, DivergedError]:
        """Take one gradient step down the loss of each fit.

        Args:
            loss: () of one fit, (M,) of several.

        Returns:
            By the place of its fit, what is wrong with each loss that is NaN or infinite. Where
            there is one, no fit is changed.

        Raises:
            IncompatibleError: Such critics can only be fitted one at a time.
        """
        if loss.numel() != len(self.fits):
            raise one_at_a_time(self.online)
        self._optimiser.zero_grad(set_to_none=True)
        (loss.sum() if loss.dim() else loss).backward()  # type: ignore[no-untyped-call]
        # Looked at once all is asked of a GPU that changes no weight: it is waited for here.
        values = loss.detach().reshape(-1).tolist()
        wrong = {
            k: DivergedError(
                f"the loss is {value} at update {self.fits[k].updates + 1}",
                remedy=_REMEDY if self.fits[k].updates else _TOO_LARGE,
            )
            for k, value in enumerate(values)
            if not math.isfinite(value)
        }
        if wrong:
            return wrong
        self._whole = False
        for fit in self.fits:
            fit.whole = False
        self._optimiser.step()
        first = self.fits[0]
        if self._averaged is not None:
            _average(self._averaged, self.online, first.settings.average, first.updates + 1)
        for fit, value in zip(self.fits, values, strict=True):
            fit.updates += 1
            fit.pending.append(value)
            if fit.updates % RECORD_EVERY == 0:
                fit.record.append((fit.updates, float(np.mean(fit.pending))))
                fit.pending.clear()
        self._whole = True
        if len(self.fits) == 1:
            first.whole = True
        return wrong


def _beside(
    stacked: Critic, members: Sequence[Critic]
) -> Iterator[tuple[Tensor, tuple[Tensor, ...]]]:
    """Yield each parameter of a stacked critic with those of its members."""
    own = zip(*(critic.parameters() for critic in members), strict=True)
    yield from zip(stacked.parameters(), own, strict=True)


def _hand_out(stacked: Tensor, members: Sequence[Tensor]) -> None:
    for member, value in zip(members, unstack(stacked, members[0]), strict=True):
        member.copy_(value)


def gradient_step(
    fit: Fit, prepared: TrainingSet, index: Tensor, noise: Tensor | None = None
) -> None:
    """Take one gradient step on the entries ``index`` (B,) of a training set.

    Raises:
        DivergedError: The loss is NaN or infinite; the fit is unchanged.
    """
    descend(fit, fit.online.loss(prepared, index, noise))


def descend(fit: Fit, loss: Tensor) -> None:
    """Take one gradient step down a loss of the online critic.

    Raises:
        DivergedError: The loss is NaN or infinite; the fit is unchanged.
    """
    for error in Group([fit]).descend(loss).values():
        raise error


def check_weights(fit: Fit) -> None:
    """Check that a critic and the moments of its gradients are still finite.

    Raises:
        DivergedError: One of them is NaN or infinite.
    """
    # Where squared gradients overflow, steps become 0, and nothing else shows it.
    moments = (state[key] for state in fit.optimiser.state.values() for key in MOMENTS)
    for name, tensors in (("weights", fit.online.parameters()), ("squared gradients", moments)):
        if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors):
            raise DivergedError(
                f"the critic's {name} are not finite after update {fit.updates}",
                remedy=f"scale the rewards, or {_REMEDY}",
            )
