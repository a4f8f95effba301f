"""The environment loop, the schedules of policies that act in it, and worker processes."""
