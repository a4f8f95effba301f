"""Statistics over seeds and policies, learning curves, and the figures of both."""
