"""Parameter-based value functions: policies as data, critics as functions of policies.

The names below are loaded when they are used, so importing this package costs nothing.
Data come from ``pbvf_datasets`` (``load_dataset``, ``from_minari``, ``DatasetWriter``).
"""

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
