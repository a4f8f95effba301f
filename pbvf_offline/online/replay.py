"""The replay buffer of online training: the last steps, or whole episodes, with their policies.

What is stored is raw, and every policy keeps its own normaliser. What a critic is shown
is re-expressed in the present one, exactly (the first layer is affine), so that an old
entry keeps its meaning when the statistics move on. The authors' rule instead shows
observations and parameters as they were normalised when they were stored
(``as_stored``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pbvf_offline.critics import TrainingSet
from pbvf_offline.critics.psvf import action_input
from pbvf_offline.errors import DamagedError
from pbvf_offline.online.policy_rows import FIRST_ROWS, PolicyRows
from pbvf_offline.policies.normaliser import Normaliser
from pbvf_offline.policies.policy import Policies
from pbvf_offline.policies.spec import PolicySpec

RECENT = 10_000
"""Observations that a replay of whole episodes keeps, for those who ask for states."""
INITIAL = 1_000
"""First observations of episodes that are kept."""


@dataclass(frozen=True)
class Steps:
    """Consecutive steps of one policy, ready to be stored.

    Attributes:
        obs: (n, obs_dim) raw, what was acted on.
        next_obs: (n, obs_dim) raw, what followed.
        action: (n, act_dim) or (n,), as executed.
        reward: (n,) float64, in the critic's reward.
        terminated: Whether the last of them ended the task.
        pre_action: (n, act_dim) pre-squash samples of stochastic continuous policies.
        shown: (n, obs_dim) and (n, obs_dim) float64: both observations as the policy saw
            them, where the replay shows them as they were stored.
    """

    obs: NDArray[Any]
    next_obs: NDArray[Any]
    action: NDArray[Any]
    reward: NDArray[np.float64]
    terminated: bool
    pre_action: NDArray[np.float64] | None = None
    shown: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None


def least_values(spec: PolicySpec, numbers: Mapping[str, int], *, monte_carlo: bool) -> int:
    """Return how many values the arrays of :meth:`Replay.state` hold at least, by its numbers."""
    size, at_most = numbers.get("size", 0), {"initials": INITIAL, "seen": RECENT}
    initials, seen = (min(numbers.get(name, 0), most) for name, most in at_most.items())
    policies = numbers.get("rows", 0) * (spec.size + 2 * spec.obs_dim)
    observations = (initials + (seen if monte_carlo else 2 * size)) * spec.obs_dim
    return policies + observations + size * (1 if monte_carlo else 1 + spec.actions.outputs)


class Replay:
    """The last ``capacity`` entries; a full buffer overwrites its oldest ones.

    An entry is a step for critics that bootstrap, and a whole episode with its return for
    Monte Carlo critics.

    Args:
        spec: Architecture of the policies.
        capacity: Number of entries.
        gamma: Discount factor of the stored discounts.
        monte_carlo: Whether entries are whole episodes.
        obs_dtype: The observations' own dtype.
        device: Where the tensors are that losses index.
        as_stored: Show entries as they were normalised when they were stored.
    """

    def __init__(
        self,
        spec: PolicySpec,
        *,
        capacity: int,
        gamma: float,
        monte_carlo: bool,
        obs_dtype: Any,
        device: torch.device,
        as_stored: bool = False,
    ) -> None:
        self.spec, self.capacity, self.gamma = spec, capacity, gamma
        self.monte_carlo, self.as_stored, self.device = monte_carlo, as_stored, device
        self.size = self.at = 0
        self._rows = PolicyRows(spec, device)
        self._normaliser = Normaliser.identity(spec.obs_dim)
        self._initial = np.zeros((INITIAL, spec.obs_dim), obs_dtype)
        self._initials = 0
        kept = RECENT if monte_carlo else capacity
        self._obs = np.zeros((kept, spec.obs_dim), obs_dtype)
        self._seen = 0  # observations ever put into the buffer of a Monte Carlo replay
        self._policy = torch.zeros(capacity, dtype=torch.int64, device=device)
        self._value = torch.zeros(capacity, device=device)
        self._index = torch.arange(capacity, device=device)
        self._ahead = self._index + capacity
        if monte_carlo:
            return
        self._next_obs = np.zeros((capacity, spec.obs_dim), obs_dtype)
        # Row i is what step i started from, row capacity + i what followed.
        self._shown = torch.zeros(2 * capacity, spec.obs_dim, device=device)
        self._discount = torch.zeros(capacity, device=device)
        # An action, or one logit a choice.
        self._action = torch.zeros(capacity, spec.actions.outputs, device=device)
        self._sample: Tensor | None = None
        if spec.stochastic and spec.is_continuous:
            self._sample = torch.zeros_like(self._action)
        elif spec.stochastic:
            self._sample = torch.zeros(capacity, dtype=torch.int64, device=device)

    def __len__(self) -> int:
        return self.size

    # ------------------------------------------------------------------------- storing

    def begin(self, policies: Policies, initial: NDArray[Any]) -> int:
        """Store the one policy of an episode that begins and return its row.

        Args:
            policies: The policy that acts, with its normaliser.
            initial: (obs_dim,) the episode's first observation.
        """
        self._forget_policies()
        row = self._rows.add(policies)
        self._rows.show(row, None if self.as_stored else self._normaliser)
        self._initial[self._initials % INITIAL] = initial
        self._initials += 1
        return row

    def add_steps(self, row: int, steps: Steps) -> None:
        """Store consecutive steps of policy ``row``."""
        n = len(steps.reward)
        begin = max(0, n - self.capacity)  # those before would be overwritten at once
        self.at = (self.at + begin) % self.capacity
        while begin < n:  # at most two pieces: up to the end of the ring, and from its start on
            count = min(n - begin, self.capacity - self.at)
            self._put(row, steps, begin, count, last=begin + count == n)
            begin += count

    def _put(self, row: int, steps: Steps, begin: int, count: int, *, last: bool) -> None:
        given, here = slice(begin, begin + count), slice(self.at, self.at + count)
        self._obs[here], self._next_obs[here] = steps.obs[given], steps.next_obs[given]
        self._policy[here] = row
        self._value[here] = self._tensor(steps.reward[given])
        self._discount[here] = self.gamma
        if last and steps.terminated:
            self._discount[self.at + count - 1] = 0.0
        self._action[here] = action_input(self.spec, steps.action[given], self.device)
        if self._sample is not None:
            if steps.pre_action is not None:
                self._sample[here] = self._tensor(steps.pre_action[given])
            else:
                self._sample[here] = self._action[here].argmax(dim=1)
        if steps.shown is not None:
            self._show_rows(here, steps.shown[0][given], steps.shown[1][given])
        else:
            apply = self._normaliser.apply
            self._show_rows(here, apply(self._obs[here]), apply(self._next_obs[here]))
        self.at = (self.at + count) % self.capacity
        self.size = min(self.size + count, self.capacity)

    def _show_rows(
        self, here: slice, obs: NDArray[np.float64], next_obs: NDArray[np.float64]
    ) -> None:
        self._shown[here] = self._tensor(obs)
        self._shown[here.start + self.capacity : here.stop + self.capacity] = self._tensor(next_obs)

    def _tensor(self, values: NDArray[Any]) -> Tensor:
        with np.errstate(over="ignore"):  # an infinite loss is noticed and says more
            return torch.from_numpy(values.astype(np.float32)).to(self.device)

    def see(self, observations: NDArray[Any]) -> None:
        """Remember observations (n, obs_dim) of an episode; Monte Carlo replays only."""
        kept = observations[-RECENT:]
        first = self._seen + len(observations) - len(kept)
        self._obs[(first + np.arange(len(kept))) % RECENT] = kept
        self._seen += len(observations)

    def finish(self, row: int, total: float, value: float | None = None) -> None:
        """Note that the episode of policy ``row`` ended by itself.

        Args:
            row: As :meth:`begin` returned it.
            total: Its undiscounted return in the critic's reward.
            value: The Monte Carlo target, for a replay of whole episodes.
        """
        self._rows.total[row] = total
        if value is not None:
            self._policy[self.at] = row
            self._value[self.at] = value
            self.at = (self.at + 1) % self.capacity
            self.size = min(self.size + 1, self.capacity)

    def _forget_policies(self) -> None:
        """Drop the rows that no entry refers to any more, when they are many.

        When to look depends on their number alone, not on the room there happens to be: a
        restored buffer forgets what the original forgets.
        """
        count = self._rows.count
        if not self.size or count < FIRST_ROWS or count & (count - 1):
            return  # not at 256, 512, 1024, …
        oldest = int(self._policy[: self.size].min())
        if oldest >= count // 2:
            self._rows.drop(oldest)
            self._policy[: self.size] -= oldest

    # ------------------------------------------------------------------------- showing

    def renormalise(self, normaliser: Normaliser) -> None:
        """Show everything in another normaliser from now on."""
        self._normaliser = normaliser
        if self.as_stored:
            return
        self._rows.show(0, normaliser)
        if not self.monte_carlo and self.size:
            rows = slice(0, self.size)
            self._show_rows(
                rows, normaliser.apply(self._obs[rows]), normaliser.apply(self._next_obs[rows])
            )

    def training_set(self) -> TrainingSet:
        """Return the entries as tensors that losses index; views, valid until the next change."""
        size = self.size
        batch = TrainingSet(
            entry=self._index[:size],
            theta=self._rows.shown,
            policy=self._policy,
            value=self._value,
        )
        if self.monte_carlo:
            return batch
        return dataclasses.replace(
            batch,
            obs=self._shown,
            obs_row=self._index,
            boot_row=self._ahead,
            discount=self._discount,
            action=self._action,
            sample=self._sample,
        )

    @property
    def observations(self) -> NDArray[Any]:
        """(R, obs_dim) raw observations that were acted on, as many as are kept."""
        return self._obs[: min(self._seen, RECENT) if self.monte_carlo else self.size]

    @property
    def initial_observations(self) -> NDArray[Any]:
        """(≤ 1,000, obs_dim) raw first observations of the last episodes."""
        return self._initial[: min(self._initials, INITIAL)]

    def policies(self) -> tuple[Policies, NDArray[np.float64]]:
        """Return the policies of the entries whose episodes ended, and their returns (P,).

        The undiscounted returns are in the critic's reward. Before any episode ended: all
        policies that are there, each with return 0.
        """
        rows = self._rows
        # Rows are in the order of the episodes: those before the oldest entry's have left.
        oldest = int(self._policy[: self.size].min()) if self.size else 0
        done = oldest + np.flatnonzero(~np.isnan(rows.total[oldest : rows.count]))
        if not len(done):
            done = np.arange(oldest, rows.count)
        kept = Policies(self.spec, rows.theta[done], rows.mean[done], rows.std[done])
        return kept, np.nan_to_num(rows.total[done])

    # -------------------------------------------------------------------- checkpointing

    def _entries(self) -> dict[str, Tensor]:
        """Return the entries' tensors by their names in a checkpoint: views."""
        tensors = {"policy": self._policy, "value": self._value}
        if not self.monte_carlo:
            tensors |= {"discount": self._discount, "action": self._action}
            if self._sample is not None:
                tensors["sample"] = self._sample
            if self.as_stored:
                tensors["shown"] = self._shown[: self.capacity]
                tensors["shown_next"] = self._shown[self.capacity :]
        return {name: tensor[: self.size] for name, tensor in tensors.items()}

    def state(self) -> tuple[dict[str, int], dict[str, NDArray[Any]]]:
        """Return numbers and arrays from which :meth:`restore` makes an equal buffer."""
        numbers = {
            "size": self.size,
            "at": self.at,
            "initials": self._initials,
            "seen": self._seen,
            "rows": self._rows.count,
        }
        arrays = {
            **self._rows.state(),
            "initial": self.initial_observations.astype(np.float64),
            "obs": self.observations.astype(np.float64),
        }
        if not self.monte_carlo:
            arrays["next_obs"] = self._next_obs[: self.size].astype(np.float64)
        return numbers, arrays | {n: tensor.cpu().numpy() for n, tensor in self._entries().items()}

    def restore(
        self,
        numbers: Mapping[str, int],
        arrays: Mapping[str, NDArray[Any]],
        normaliser: Normaliser,
        where: str | None = None,
    ) -> None:
        """Take over a state; everything is shown in ``normaliser``.

        Raises:
            DamagedError: The state, which ``where`` holds, is not that of such a buffer.
        """
        try:
            self.size, self.at = numbers["size"], numbers["at"]
            self._initials, self._seen = numbers["initials"], numbers["seen"]
            self._rows.restore(numbers["rows"], arrays)
            self._initial[: min(self._initials, INITIAL)] = arrays["initial"]
            self._obs[: len(self.observations)] = arrays["obs"]
            if not self.monte_carlo:
                self._next_obs[: self.size] = arrays["next_obs"]
            for name, tensor in self._entries().items():
                tensor[:] = torch.from_numpy(arrays[name].copy()).to(self.device)
        except (KeyError, ValueError, TypeError, RuntimeError, IndexError) as error:
            raise DamagedError(f"the replay buffer is malformed: {error}", where=where) from error
        self.renormalise(normaliser)
