"""Work that makes data: collecting, training runs as folders, several seeds at once."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
