"""Imagined rollouts: policies played in a learned environment, many at once."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pbvf_offline.errors import IncompatibleError, differences
from pbvf_offline.models.ensemble import Ensemble
from pbvf_offline.policies.actions import DiscreteActions
from pbvf_offline.policies.batch import network_output, squashed
from pbvf_offline.policies.spec import PolicySpec

_ROWS = 256  # imagined episodes that a member plays at once
_ROWS_GPU = 16_384  # a GPU takes as long for far fewer
_COMPACT_EVERY = 25  # steps between looks for policies whose episodes have all ended


@dataclass(frozen=True)
class Recording:
    """Every step of imagined episodes; what is beyond an episode's end means nothing.

    Attributes:
        states: (K, S, M, T + 1, obs_dim) float32 normalised observations.
        outputs: (K, S, M, T, outputs) float32, what actions were made from: outputs of the
            policy, with the action noise of stochastic ones, before squashing.
        rewards: (K, S, M, T) float64.
        ended: (K, S, M) bool, whether the last step terminated.
    """

    states: NDArray[np.float32]
    outputs: NDArray[np.float32]
    rewards: NDArray[np.float64]
    ended: NDArray[np.bool_]


@dataclass(frozen=True)
class Imagined:
    """Imagined episodes of K policies from S starts in M members.

    Episodes end where termination is more likely than not. So one in which it is likely at every
    step, and never more likely than not, never ends, and a search finds such policies. Of that the
    network is not sure, and what it expects is another return: with the chance p_t that step t
    terminates, and rewards r_t and, of an end, r'_t,

        E = sum over t of  s_t ((1 - p_t) r_t + p_t r'_t),   s_t = (1 - p_0) … (1 - p_{t-1})

    over the steps of the imagined episode, at whose end p_t is 1. The lower of the two is trusted:
    where an end is a failure the chance of it takes off, and a goal counts where it is reached.

    Attributes:
        marks: The numbers of steps after which was noted; the time limit last.
        returns: (marks, K, S, M) float64, undiscounted reward so far.
        trusted: (K, S, M) float64, what is trusted of the whole returns: the lower of two sums,
            below, of which after the first step whose observation the box of the data held back
            at most ``scales.reward.mean`` counts for each step. That step itself still began inside
            the box.
        states: (marks, K, S, M, obs_dim) float32 normalised observation; that of the end
            where an episode has ended.
        lengths: (K, S, M) int64, steps until the end.
        recording: Every step, where that was wanted.
    """

    marks: tuple[int, ...]
    returns: NDArray[np.float64]
    trusted: NDArray[np.float64]
    states: NDArray[np.float32]
    lengths: NDArray[np.int64]
    recording: Recording | None = None

    def member_values(self) -> NDArray[np.float64]:
        """Return the mean return (K, M) of whole episodes in each member."""
        values: NDArray[np.float64] = self.returns[-1].mean(axis=1)
        return values


def imagine(
    ensemble: Ensemble,
    spec: PolicySpec,
    theta: NDArray[np.float32],
    starts: NDArray[np.float64],
    steps: int,
    *,
    noise: Tensor | None = None,
    actions: Tensor | None = None,
    marks: tuple[int, ...] = (),
    record: bool = False,
) -> Imagined:
    """Play each policy from its starts in every member, for whole episodes.

    Imagined observations stay in the box of the data, rewards in their range, and an
    episode ends where termination is more likely than not.

    Args:
        ensemble: The learned environment.
        spec: The policies' architecture; observations and actions are the data's.
        theta: (K, D) in the ensemble's normaliser, see :meth:`Policies.in_normaliser`.
        starts: (S, obs_dim) raw first observations, or (K, S, obs_dim) of each policy.
        steps: Time limit.
        noise: (steps, M, S, outputs), or (K, steps, M, S, outputs) of each policy, see
            :func:`~pbvf_offline.models.noise.action_noise`; stochastic policies need it.
        actions: (K, steps, action inputs) played in place of what policies would do, in every
            member and from every start; theta is (K, 0) then.
        marks: Increasing numbers of steps, below the limit, to note returns and states after.
        record: Keep every step.

    Raises:
        IncompatibleError: Policies act in another environment, or lack their noise.
    """
    refuse_other_policies(ensemble, spec)
    if spec.stochastic:
        shape = (steps, ensemble.members, starts.shape[-2], spec.actions.outputs)
        if noise is None or noise.shape[-4:] != shape:
            raise IncompatibleError("stochastic policies need noise for each step and start")
        noise = noise.to(ensemble.device).expand(len(theta), *shape)
    starts = np.broadcast_to(starts, (len(theta), *starts.shape[-2:]))
    rows, device = (_ROWS if ensemble.device.type == "cpu" else _ROWS_GPU), ensemble.device
    first = torch.from_numpy(ensemble.scales.normaliser.apply(starts).astype(np.float32)).to(device)
    actions = None if actions is None else actions.to(device)
    block = max(1, rows // starts.shape[1])
    plays = []
    for at in range(0, len(theta), block):
        chunk = torch.from_numpy(theta[at : at + block]).to(device)
        play = _Play(ensemble, spec, chunk, first[at : at + block], (*marks, steps), record=record)
        given = (None if part is None else part[at : at + block] for part in (noise, actions))
        play.run(*given)
        play.to_cpu()
        plays.append(play)
    return Imagined(
        (*marks, steps),
        torch.cat([play.returns for play in plays], dim=1).numpy(),
        torch.cat([play.trusted for play in plays]).numpy(),
        torch.cat([play.states for play in plays], dim=1).numpy(),
        torch.cat([play.lengths for play in plays]).numpy(),
        _recording(plays) if record else None,
    )


def _recording(plays: list[_Play]) -> Recording:
    """Return the steps of all policies, with time after policy, start and member."""

    def steps(name: str) -> NDArray[Any]:
        whole = torch.cat([play.steps[name] for play in plays], dim=1)  # (T, K, M, S, …)
        array: NDArray[Any] = whole.transpose(2, 3).movedim(0, 3).numpy()
        return array

    ended = torch.cat([play.ended for play in plays]).numpy()
    return Recording(steps("states"), steps("outputs"), steps("rewards"), ended)


def refuse_other_policies(ensemble: Ensemble, spec: PolicySpec, where: Path | None = None) -> None:
    """Refuse policies that cannot act in a learned environment of a file ``where``.

    Raises:
        IncompatibleError: They have other observations, actions or another squashing.
    """
    own = ensemble.spec
    alike = replace(own, obs_dim=spec.obs_dim, actions=spec.actions, squash=spec.squash)
    if alike != own:
        raise IncompatibleError(
            "the policies have other observations or actions than the model: "
            f"{differences(alike.traits, own.traits)}",
            where=where,
            remedy="give a model that fit-model learned from data of such policies",
        )


class _Play:
    """A block of policies; tensors are (K, M, S, …) here, the policies still playing first."""

    def __init__(
        self,
        ensemble: Ensemble,
        spec: PolicySpec,
        theta: Tensor,
        first: Tensor,
        marks: tuple[int, ...],
        *,
        record: bool,
    ) -> None:
        self._ensemble, self._spec, self._marks = ensemble, spec, marks
        count, each, size = first.shape
        members = ensemble.members
        self._shape = (members, each)
        device = first.device
        self._rows = torch.arange(count, device=device)  # policies still playing
        self._theta = theta
        self._obs = first.unsqueeze(1).repeat(1, members, 1, 1)
        zeros = functools.partial(torch.zeros, device=device)
        self._alive = torch.ones(count, members, each, dtype=torch.bool, device=device)
        self._length = zeros(count, members, each, dtype=torch.int64)
        self._held = zeros(count, members, each, dtype=torch.bool)  # by the box, so far
        self._paid = _Sums.zeros(self._length)
        self._ends = ensemble.scales.ends
        # The chance s_t that the episode has not ended, and what is expected by it.
        self._lasts = torch.ones_like(self._length, dtype=torch.float64)
        self._expected = _Sums.zeros(self._length)
        self.returns = zeros(len(marks), count, each, members, dtype=torch.float64)
        self.states = zeros(len(marks), count, each, members, size)
        self.lengths = zeros(count, each, members, dtype=torch.int64)
        self.trusted = zeros(count, each, members, dtype=torch.float64)
        self.ended = torch.ones(count, each, members, dtype=torch.bool, device=device)
        self.steps: dict[str, Tensor] = {}  # time first, which is how they are written
        if record:
            shape, time = (count, members, each), marks[-1]
            self.steps = {
                "states": zeros(time + 1, *shape, size),
                "outputs": zeros(time, *shape, spec.actions.outputs),
                "rewards": zeros(time, *shape, dtype=torch.float64),
            }
            self.steps["states"][0] = self._obs

    @torch.inference_mode()
    def run(self, noise: Tensor | None, actions: Tensor | None) -> None:
        """Play until the last mark, or until every episode has ended."""
        for t in range(self._marks[-1]):
            if actions is None:
                out = self._outputs(None if noise is None else noise[self._rows, t])
                if self.steps:
                    self.steps["outputs"][t, self._rows] = out
                self._step(t, _action(self._spec, out))
            else:
                self._step(t, actions[self._rows, t, None, None].expand(-1, *self._shape, -1))
            if t + 1 in self._marks:
                self._note(range(self._marks.index(t + 1), len(self._marks)))
            if self._ends and (t + 1) % _COMPACT_EVERY == 0:
                self._compact(t + 1)
                if len(self._rows) == 0:
                    break
        self.ended[self._rows] = ~self._alive.transpose(1, 2)

    def to_cpu(self) -> None:
        """Bring what is public back, and leave a GPU the memory for the next block."""
        for name in ("returns", "trusted", "states", "lengths", "ended"):
            setattr(self, name, getattr(self, name).cpu())
        self.steps = {name: values.cpu() for name, values in self.steps.items()}

    def _outputs(self, noise: Tensor | None) -> Tensor:
        """Return what the policies make actions from, (K, M, S, outputs)."""
        count, (members, each) = len(self._rows), self._shape
        out = network_output(self._spec, self._theta, self._obs.reshape(count, members * each, -1))
        if noise is not None:
            out = _with_noise(self._spec, self._theta, out, noise.flatten(1, 2))
        return out.reshape(count, members, each, -1)

    def _step(self, t: int, action: Tensor) -> None:
        count, (members, each) = len(self._rows), self._shape
        # The networks see (M, K * S, …).
        step = self._ensemble.step(
            self._obs.transpose(0, 1).reshape(members, count * each, -1),
            action.transpose(0, 1).reshape(members, count * each, -1),
        )

        def by_policy(values: Tensor) -> Tensor:
            return values.reshape(members, count, each, *values.shape[2:]).transpose(0, 1)

        alive = self._alive
        paid, ahead = by_policy(step.reward), by_policy(step.obs)
        self._paid.add(torch.where(alive, paid, 0.0), alive.double(), self._held)
        self._length += alive
        if self._ends:
            lasts = torch.where(alive, self._lasts, 0.0)
            self._expected.add(lasts * by_policy(step.expected), lasts, self._held)
            self._lasts *= by_policy(step.going_on)
            self._obs = torch.where(alive.unsqueeze(-1), ahead, self._obs)
            alive &= ~by_policy(step.ended)
        else:
            self._obs = ahead
        self._held |= by_policy(step.held)
        if self.steps:
            self.steps["states"][t + 1, self._rows] = self._obs
            self.steps["rewards"][t, self._rows] = paid

    def _note(self, marks: range) -> None:
        """Write what stands into the given marks; later ones are overwritten as play goes on."""
        at, mean = self._rows, self._ensemble.scales.reward.mean
        for mark in marks:
            self.returns[mark, at] = self._paid.total.transpose(1, 2)
            self.states[mark, at] = self._obs.transpose(1, 2)
        self.lengths[at] = self._length.transpose(1, 2)
        trusted = self._paid.trusted(mean)
        if self._ends:
            trusted = torch.minimum(trusted, self._expected.trusted(mean))
        self.trusted[at] = trusted.transpose(1, 2)

    def _compact(self, step: int) -> None:
        """Stop playing policies whose episodes have all ended."""
        playing = self._alive.flatten(1).any(dim=1)
        if bool(playing.all()):
            return
        self._note(range(sum(mark <= step for mark in self._marks), len(self._marks)))
        for name in ("_rows", "_theta", "_obs", "_alive", "_length", "_held", "_lasts"):
            setattr(self, name, getattr(self, name)[playing])
        self._paid, self._expected = self._paid.of(playing), self._expected.of(playing)


@dataclass
class _Sums:
    """Sums (K, M, S) over the steps of imagined episodes, float64.

    Attributes:
        total: Rewards.
        rest: Those of steps after the box held an observation back.
        beyond: Number of these steps, or their chances to be taken.
    """

    total: Tensor
    rest: Tensor
    beyond: Tensor

    @classmethod
    def zeros(cls, like: Tensor) -> _Sums:
        return cls(*(torch.zeros_like(like, dtype=torch.float64) for _ in range(3)))

    def add(self, reward: Tensor, steps: Tensor, held: Tensor) -> None:
        self.total += reward
        self.rest += torch.where(held, reward, 0.0)
        self.beyond += torch.where(held, steps, 0.0)

    def trusted(self, mean: float) -> Tensor:
        """Return the total, in which each step beyond the box counts as at most the mean."""
        return self.total - (self.rest - mean * self.beyond).clamp(min=0.0)

    def of(self, rows: Tensor) -> _Sums:
        return _Sums(self.total[rows], self.rest[rows], self.beyond[rows])


def _with_noise(spec: PolicySpec, theta: Tensor, out: Tensor, noise: Tensor) -> Tensor:
    if not spec.is_continuous:
        return out + noise
    return out + torch.exp(theta[:, : spec.log_std_size]).unsqueeze(1) * noise


def _action(spec: PolicySpec, out: Tensor) -> Tensor:
    """Return actions (…, action inputs) from network outputs, as the networks see stored ones."""
    if isinstance(spec.actions, DiscreteActions):
        return torch.nn.functional.one_hot(out.argmax(dim=-1), spec.actions.n).float()
    return squashed(spec, out)
