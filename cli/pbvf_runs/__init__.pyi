from .collection import collect as collect
from .comparison import compare_policies as compare_policies
from .settings import CollectSettings as CollectSettings
from .train import train_run as train_run
