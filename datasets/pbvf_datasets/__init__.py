"""Policy-tagged datasets: write, read, check and share them.

>>> from pbvf_datasets import load_dataset, from_minari, DatasetWriter

Names are resolved on first use, so that importing this package costs nothing.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
