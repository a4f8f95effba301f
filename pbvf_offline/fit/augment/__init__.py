"""Fit-time augmentation: other data that a critic may learn from."""
