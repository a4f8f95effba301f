from .collection import collect as collect
from .comparison import compare_policies as compare_policies
from .train import train_run as train_run
