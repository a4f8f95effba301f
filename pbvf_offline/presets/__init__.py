"""Hyperparameters as data: the paper's tables and this project's defaults."""
