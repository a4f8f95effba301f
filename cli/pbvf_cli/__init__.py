"""The ``pbvf`` command: a form, not a program. It parses, shows and prints; the library works."""
