"""Policies as data: what one is, how it acts, and the files that hold them."""
