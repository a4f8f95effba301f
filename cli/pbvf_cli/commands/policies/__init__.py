"""``pbvf policies …``: from and to other programs, and what a policies file holds."""
