"""What commands take: data to learn from, policies, critics, environments."""
