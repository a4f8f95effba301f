"""The LQR under the name that datasets of version 0.1 give as its entry point."""

from pbvf_offline.envs.lqr import LQREnv

__all__ = ["LQREnv"]
