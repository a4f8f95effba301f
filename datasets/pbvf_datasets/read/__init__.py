"""Reading datasets: untrusted folders, checked episodes, flat arrays, Minari."""
