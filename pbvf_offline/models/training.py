"""Training of an ensemble: resumable at any update, extendable after the last.

What update u draws is a pure function of the seed and u. The learning rate rises over the
first updates, stands, and falls over the last part of the updates wanted. So that a
finished training can be extended, the state from before the fall is kept: a longer
training goes on from there and ends with the bytes of an uninterrupted one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from pbvf_offline.errors import DivergedError, UsageError, counted
from pbvf_offline.models.ensemble import Ensemble, Steps
from pbvf_offline.models.objectives import Objective, objectives
from pbvf_offline.models.settings import ModelSettings
from pbvf_offline.seeding import Stream, generator

RECORD_EVERY = 100
_BLOCK = 64  # updates whose batches are drawn together
_RISE = 500  # updates over which the learning rate rises
_FALL = 0.4  # part of the updates over which it falls
_EXPLODED = 1e4  # a loss, usually below 100, above which, as with NaN, an update teaches nothing
_HOPELESS = 10  # such updates in a row that are no accident


@dataclass(frozen=True)
class Snapshot:
    """A training at one update.

    Attributes:
        updates: Updates done.
        weights: The networks' parameters, in their own order.
        first: Adam's running means of the gradients, in the same order.
        second: Adam's running means of their squares.
        pending: Losses since the last entry of the record.
        exploded: Exploded updates in a row, up to this one.
    """

    updates: int
    weights: tuple[Tensor, ...]
    first: tuple[Tensor, ...]
    second: tuple[Tensor, ...]
    pending: tuple[float, ...]
    exploded: int = 0


@dataclass
class ModelFit:
    """An ensemble in training.

    Attributes:
        ensemble: The networks, changed in place.
        total: Updates wanted, which the learning rate depends on.
        optimiser: Adam over all networks.
        updates: Updates done.
        record: ``(update, mean loss of a member since the one before)``.
        pending: Losses of a member since the last entry of the record, but for exploded updates.
        exploded: Exploded updates in a row, up to the last one.
        before_fall: The training where the learning rate began to fall, from there on.
        whole: False while an update is under way, when nothing may be saved.
    """

    ensemble: Ensemble
    total: int
    optimiser: torch.optim.Adam
    updates: int = 0
    record: list[tuple[int, float]] = field(default_factory=list)
    pending: list[float] = field(default_factory=list)
    exploded: int = 0
    before_fall: Snapshot | None = None
    whole: bool = True

    def snapshot(self) -> Snapshot:
        """Return a copy of the present state."""
        parameters = list(self.ensemble.parameters())
        states = [self.optimiser.state[p] for p in parameters] if self.updates else []
        return Snapshot(
            self.updates,
            tuple(p.detach().clone() for p in parameters),
            tuple(state["exp_avg"].clone() for state in states),
            tuple(state["exp_avg_sq"].clone() for state in states),
            tuple(self.pending),
            self.exploded,
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot's state."""
        self.updates = snapshot.updates
        self.record = [(u, loss) for u, loss in self.record if u <= snapshot.updates]
        self.pending, self.exploded = list(snapshot.pending), snapshot.exploded
        self.optimiser = _adam(self.ensemble)
        step = torch.tensor(float(snapshot.updates), device=self.ensemble.device)
        for k, parameter in enumerate(self.ensemble.parameters()):
            with torch.no_grad():
                parameter.copy_(snapshot.weights[k])
            if snapshot.updates:
                self.optimiser.state[parameter] = {
                    "step": step.clone(),
                    "exp_avg": snapshot.first[k].to(step.device, copy=True),
                    "exp_avg_sq": snapshot.second[k].to(step.device, copy=True),
                }

    def extend(self, total: int) -> None:
        """Want more updates; whatever was done while the learning rate fell is done again.

        Raises:
            UsageError: Fewer updates are wanted than before.
        """
        if total < self.total:
            raise UsageError(f"{total} updates are fewer than the {self.total} of this model")
        if total > self.total and self.before_fall is not None:
            self.restore(self.before_fall)
            self.before_fall = None
        self.total = total


def start_training(ensemble: Ensemble, total: int) -> ModelFit:
    """Return a training at update 0."""
    if total < 1:
        raise UsageError(
            f"{total} updates were asked for, and at least 1 is needed", where="--updates"
        )
    return ModelFit(ensemble, total, _adam(ensemble))


def _adam(ensemble: Ensemble) -> torch.optim.Adam:
    return torch.optim.Adam(ensemble.parameters(), lr=ensemble.settings.lr, fused=True)


def fall_from(total: int) -> int:
    """Return the update from which the learning rate falls."""
    return total - math.floor(_FALL * total)


def learning_rate(settings: ModelSettings, update: int, total: int) -> float:
    """Return Adam's learning rate at an update (counted from 0) of so many."""
    rise = min(1.0, (update + 1) / _RISE)
    falling = math.floor(_FALL * total)
    return settings.lr * rise * (min(1.0, (total - update) / falling) if falling else 1.0)


@dataclass(frozen=True)
class Drawn:
    """What a part of the networks sees in an update.

    Attributes:
        objective: Which m networks, and how they learn.
        index: (m, B) int64, the steps that each begins at.
        noise: (m, B, obs_dim) what is added to the first observations, in units of the spread
            of a step's change; None: nothing.
    """

    objective: Objective
    index: Tensor
    noise: Tensor | None

    def to(self, device: torch.device) -> Drawn:
        """Return it on a device."""
        noise = None if self.noise is None else self.noise.to(device)
        return dataclasses.replace(self, index=self.index.to(device), noise=noise)


def model_loss(ensemble: Ensemble, steps: Steps, drawn: Sequence[Drawn]) -> Tensor:
    """Return the sum over members of their mean error and termination's log loss.

    From each drawn step a member predicts up to ``unroll`` steps in a row, each from the
    observation that the one before led to, with the stored actions and no further than the
    episode goes. A target takes back the share ``recovery`` of how far its input is from the true
    observation, so networks learn to come back. To take back all of it is to predict the mean of
    the true observations that an input may be of, which pulls imagined episodes to where data are
    dense: policies faster than all in the data seem slow.

    Errors e count as e^2 up to ``huber`` = h, and as 2 h |e| - h^2 above (Huber's loss, twice). A
    joint that meets its limit changes by many times what it does otherwise. By squares alone such
    steps take most of the loss, and all others are learned less exactly. Where rewards are sparse
    their errors all count by squares: a large and rare reward, as of a goal, is not learned by
    absolute values.

    Args:
        ensemble: The networks.
        steps: What they learn from.
        drawn: What each part of the networks sees.
    """
    return torch.stack([_loss(ensemble, steps, part) for part in drawn]).sum()


def _loss(ensemble: Ensemble, steps: Steps, drawn: Drawn) -> Tensor:
    size, change_std = ensemble.spec.obs_dim, ensemble.change_std
    objective, index, noise = drawn.objective, drawn.index, drawn.noise
    away: Tensor | float = 0.0 if noise is None else noise * change_std
    network = ensemble.network.members(objective.members)
    last = steps.last[index]
    total, count = change_std.new_zeros(len(index)), change_std.new_zeros(len(index))
    for ahead in range(objective.unroll):
        row = torch.minimum(index + ahead, last)
        there = (index + ahead <= last).float()
        change = steps.change[row]
        out = ensemble.outputs(steps.obs[row] + away, steps.action[row], network)
        wanted = (change - objective.recovery * away - ensemble.change_mean) / change_std
        wanted = torch.cat([wanted, steps.reward[row].unsqueeze(-1)], dim=-1)
        told = out[..., : size + 1]
        if ensemble.scales.end_reward is not None:
            reward = torch.where(steps.ended[row] > 0, out[..., size + 2], out[..., size])
            told = torch.cat([out[..., :size], reward.unsqueeze(-1)], dim=-1)
        error = _penalty(told, wanted, objective.huber)
        if steps.sparse:
            squares = (told[..., size:] - wanted[..., size:]).square()
            error = torch.cat([error[..., :size], squares], dim=-1)
        error = error.mean(dim=-1)
        if ensemble.scales.ends:
            error = error + torch.nn.functional.binary_cross_entropy_with_logits(
                out[..., size + 1], steps.ended[row], reduction="none"
            )
        total = total + (error * there).sum(dim=1)
        count = count + there.sum(dim=1)
        away = away + torch.addcmul(ensemble.change_mean, out[..., :size], change_std) - change
    return (total / count).sum()


def _penalty(out: Tensor, wanted: Tensor, huber: float) -> Tensor:
    if huber == 0:
        return (out - wanted).square()
    return 2 * torch.nn.functional.huber_loss(out, wanted, reduction="none", delta=huber)


def batches(
    settings: ModelSettings, entries: int, obs_dim: int, start: int, stop: int
) -> Iterator[list[Drawn]]:
    """Yield what updates start … stop - 1 draw, for each part of the networks.

    Steps are drawn uniformly with replacement; their number times the steps in a row is about the
    batch size. Noise is normal, its size drawn for each step between 0 and the largest.
    """
    parts = objectives(settings)
    for block in range(start // _BLOCK, (stop + _BLOCK - 1) // _BLOCK):
        rng = generator(settings.seed, Stream.MODEL_BATCH, block)
        for update in range(block * _BLOCK, min(stop, (block + 1) * _BLOCK)):
            # Drawn also for updates that are passed over, so that each has its own numbers.
            drawn = [
                _draw(objective, settings.batch_size, entries, obs_dim, rng) for objective in parts
            ]
            if update >= start:
                yield drawn


def _draw(
    objective: Objective, batch_size: int, entries: int, obs_dim: int, rng: np.random.Generator
) -> Drawn:
    networks = objective.members.stop - objective.members.start
    shape = (networks, max(1, batch_size // objective.unroll))
    index = torch.from_numpy(rng.integers(entries, size=shape))
    if objective.noise == 0:
        return Drawn(objective, index, None)
    size = rng.random((*shape, 1), dtype=np.float32) * np.float32(objective.noise)
    noise = rng.standard_normal((*shape, obs_dim), dtype=np.float32) * size
    return Drawn(objective, index, torch.from_numpy(noise))


def advance(
    fit: ModelFit,
    steps: Steps,
    until: int,
    after_update: Callable[[ModelFit], None] | None = None,
) -> None:
    """Take gradient steps up to update ``until``, at most ``fit.total``.

    Steps in a row of violent movements can explode: each makes the error of the one before many
    times as large. Then the update has gradients of zero, since Adam would keep the squares of the
    exploded ones for thousands of updates, or could not hold them in single precision.

    Args:
        fit: The training, changed in place.
        steps: What the networks learn from, on their device.
        until: Number of updates wanted in all.
        after_update: Called after every update, for progress and checkpoints.

    Raises:
        DivergedError: The loss has exploded, or was NaN, for 10 updates in a row or for all; after
            the last update wanted, the weights it led to are those of an explosion; or weights or
            gradients are beyond single precision.
    """
    ensemble = fit.ensemble
    settings, obs_dim, device = ensemble.settings, ensemble.spec.obs_dim, ensemble.device
    for drawn in batches(settings, len(steps), obs_dim, fit.updates, until):
        if fit.updates == fall_from(fit.total):
            fit.before_fall = fit.snapshot()
        for group in fit.optimiser.param_groups:
            group["lr"] = learning_rate(settings, fit.updates, fit.total)
        loss = model_loss(ensemble, steps, [part.to(device) for part in drawn])
        fit.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        value = loss.item()  # a GPU is waited for here, after all that changes no weight
        in_a_row = 0 if value <= _EXPLODED else fit.exploded + 1
        if in_a_row:
            _leave_out(ensemble, fit.updates + 1, value, in_a_row, min(_HOPELESS, until))
        fit.whole = False
        fit.optimiser.step()
        fit.updates += 1
        fit.exploded = in_a_row
        if not in_a_row:
            fit.pending.append(value / settings.members)
        if fit.updates % RECORD_EVERY == 0 and fit.pending:
            fit.record.append((fit.updates, float(np.mean(fit.pending))))
            fit.pending.clear()
        fit.whole = True
        if after_update is not None:
            after_update(fit)
    _refuse_overflow(fit)
    if fit.updates == fit.total:
        _refuse_explosion(fit, steps)


def _leave_out(ensemble: Ensemble, update: int, loss: float, in_a_row: int, hopeless: int) -> None:
    """Set the gradients of an exploded update to zero; after so many in a row give up."""
    if in_a_row >= hopeless:
        many = f", and was as large for {counted(in_a_row, 'update')}" if in_a_row > 1 else ""
        raise DivergedError(
            f"the model's loss is {loss:.3g} at update {update}{many}",
            remedy=_remedy(ensemble.settings),
        )
    for parameter in ensemble.parameters():
        parameter.grad = torch.zeros_like(parameter)


def _refuse_overflow(fit: ModelFit) -> None:
    """Refuse what is no number in a training: a reader of its file would call that damage."""
    parameters = list(fit.ensemble.parameters())
    states = [fit.optimiser.state[parameter] for parameter in parameters] if fit.updates else []
    parts = {
        "weights": parameters,
        "gradients": [state["exp_avg"] for state in states],
        "squares of the gradients": [state["exp_avg_sq"] for state in states],
    }
    for name, tensors in parts.items():
        if not all(bool(tensor.isfinite().all()) for tensor in tensors):
            raise DivergedError(
                f"the model's {name} are beyond single precision by update {fit.updates}",
                remedy=_remedy(fit.ensemble.settings),
            )


def _refuse_explosion(fit: ModelFit, steps: Steps) -> None:
    """Refuse weights with which training could not go on, as the last updates left them.

    Exploded updates at the end, fewer in a row than are hopeless, may be an accident, as anywhere
    else; and what the last step led to, no update has looked at. So the losses are looked at that
    further updates would have, without taking them: one that has not exploded tells the accident,
    and as many in a row as are hopeless, with those at the end, the explosion.
    """
    ensemble, loss = fit.ensemble, math.nan
    settings, obs_dim, device = ensemble.settings, ensemble.spec.obs_dim, ensemble.device
    until = fit.updates + max(1, _HOPELESS - fit.exploded)
    for drawn in batches(settings, len(steps), obs_dim, fit.updates, until):
        with torch.no_grad():
            loss = model_loss(ensemble, steps, [part.to(device) for part in drawn]).item()
        if loss <= _EXPLODED:
            return
    raise DivergedError(
        f"the model's loss is {loss:.3g} after update {fit.updates}, the last one",
        remedy=_remedy(settings),
    )


def _remedy(settings: ModelSettings) -> str:
    # What explodes are most often steps in a row, which half of mixed networks learn.
    return "lower --lr" + (", or use --no-mixed" if settings.mixed else "")
