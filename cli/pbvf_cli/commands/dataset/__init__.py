"""``pbvf dataset …``: look at, check, change and share datasets."""
