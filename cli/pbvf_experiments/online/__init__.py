"""The experiments of sections 4.2 and 4.3: online training, and policies grown afterwards."""
