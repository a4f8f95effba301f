"""Policies from and to torch, Stable-Baselines3 and ONNX."""
