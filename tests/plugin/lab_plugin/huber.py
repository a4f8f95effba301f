"""A critic with another loss."""

from torch import Tensor, nn

from lab_plugin import kinds
from pbvf_offline.critics import TrainingSet
from pbvf_offline.critics.pssvf import PSSVF


class HuberCritic(PSSVF):
    """V(theta) with the Huber loss."""

    kind = kinds.HUBER

    def loss(self, batch: TrainingSet, index: Tensor, noise: Tensor | None = None) -> Tensor:
        value = self.network.head(self.theta_part(batch.thetas(index, noise)))
        return nn.functional.huber_loss(value, batch.value[index])
