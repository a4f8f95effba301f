"""Parameter-based value functions; :data:`CRITICS` lists the kinds, without importing torch."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
