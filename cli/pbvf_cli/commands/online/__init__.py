"""The parts of ``pbvf train-online``."""
