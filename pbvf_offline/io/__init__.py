"""Files: tensors with a self-describing header, strict JSON, locks and atomic renames."""
