"""The lab's critic, known without torch."""

from pbvf_offline.critics import CriticKind, OfflinePreset, OnlinePreset

HUBER = CriticKind(
    name="lab-huber",
    summary="V(theta), with a loss that outliers move less",
    implementation="lab_plugin.huber:HuberCritic",
    inputs=("theta",),
    offline=OfflinePreset(hidden=(8,), batch_size=16, lr=1e-2, updates=50),
    online=OnlinePreset((8,), 16, None, critic_updates=2, actor_updates=2),
    monte_carlo=True,
    undiscounted=True,
)
