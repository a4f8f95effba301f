from .collection import collect as collect
from .compare.policies import compare_policies as compare_policies
from .settings import CollectSettings as CollectSettings
from .share.bundles import pack as pack
from .share.bundles import pull as pull
from .share.bundles import push as push
from .share.bundles import unpack as unpack
from .train import train_run as train_run
