"""One self-contained HTML page about datasets, models, critics, policies and runs."""
