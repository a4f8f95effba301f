"""Members that another lab adds."""
