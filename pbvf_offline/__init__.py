"""Parameter-based value functions: policies as data, critics as functions of policies.

The names below are loaded when they are used, so importing this package costs nothing.
Data come from ``pbvf_datasets`` (``load_dataset``, ``from_minari``, ``DatasetWriter``).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PLACES = {
    "Actor": "policies",
    "BoxActions": "policies",
    "CriticFile": "critic_files",
    "DiscreteActions": "policies",
    "EnvConfig": "envs",
    "FitSettings": "fit",
    "Hooks": "online",
    "OnlineSettings": "online",
    "Policies": "policies",
    "PoliciesFile": "policy_files",
    "PolicySpec": "policies",
    "SynthesisSettings": "synthesis",
    "default_fit_settings": "fit",
    "default_synthesis_settings": "synthesis",
    "evaluate_policies": "rollout",
    "export_policies": "policy_exchange",
    "fit_to_file": "fit_files",
    "from_sb3": "sb3_actors",
    "from_state_dict": "policy_exchange",
    "init_theta": "policies",
    "load_critic": "critic_files",
    "load_policies": "policy_files",
    "make_env": "envs",
    "online_defaults": "online_presets",
    "perturb": "policies",
    "spec_for_env": "envs",
    "start_training": "online",
    "synthesize": "synthesis",
    "synthesize_to_file": "synthesis_files",
    "to_module": "policy_exchange",
    "train": "online",
}

if TYPE_CHECKING:
    from pbvf_offline.critic_files import CriticFile, load_critic
    from pbvf_offline.envs import EnvConfig, make_env, spec_for_env
    from pbvf_offline.fit import FitSettings, default_fit_settings
    from pbvf_offline.fit_files import fit_to_file
    from pbvf_offline.online import Hooks, OnlineSettings, start_training, train
    from pbvf_offline.online_presets import online_defaults
    from pbvf_offline.policies import (
        Actor,
        BoxActions,
        DiscreteActions,
        Policies,
        PolicySpec,
        init_theta,
        perturb,
    )
    from pbvf_offline.policy_exchange import export_policies, from_state_dict, to_module
    from pbvf_offline.policy_files import PoliciesFile, load_policies
    from pbvf_offline.rollout import evaluate_policies
    from pbvf_offline.sb3_actors import from_sb3
    from pbvf_offline.synthesis import (
        SynthesisSettings,
        default_synthesis_settings,
        synthesize,
    )
    from pbvf_offline.synthesis_files import synthesize_to_file

__all__ = [
    "Actor",
    "BoxActions",
    "CriticFile",
    "DiscreteActions",
    "EnvConfig",
    "FitSettings",
    "Hooks",
    "OnlineSettings",
    "Policies",
    "PoliciesFile",
    "PolicySpec",
    "SynthesisSettings",
    "default_fit_settings",
    "default_synthesis_settings",
    "evaluate_policies",
    "export_policies",
    "fit_to_file",
    "from_sb3",
    "from_state_dict",
    "init_theta",
    "load_critic",
    "load_policies",
    "make_env",
    "online_defaults",
    "perturb",
    "spec_for_env",
    "start_training",
    "synthesize",
    "synthesize_to_file",
    "to_module",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
