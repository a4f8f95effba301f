from .collection import collect as collect
from .comparison import compare_policies as compare_policies
from .settings import CollectSettings as CollectSettings
from .sharing import pack as pack
from .sharing import pull as pull
from .sharing import push as push
from .sharing import unpack as unpack
from .train import train_run as train_run
