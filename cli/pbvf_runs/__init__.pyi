from .collection import collect as collect
from .train import train_run as train_run
