"""The paper's experiments, run again: resumable cell by cell, drawn from small JSON files."""
