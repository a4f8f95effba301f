"""Sharing datasets: remotes, archives, signatures and privacy."""
