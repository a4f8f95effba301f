"""Parts of single commands that are too long for the command's own module."""
