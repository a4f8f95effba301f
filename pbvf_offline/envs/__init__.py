"""Environments: references to them, building them, and the ones this project brings along."""
