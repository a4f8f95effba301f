"""Looking at datasets and files: what they hold, and whether they are intact."""
