"""Learned environments: an ensemble of dynamics networks, its check, and imagined rollouts."""
