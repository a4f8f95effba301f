"""The subcommands of ``pbvf``, one module each."""
