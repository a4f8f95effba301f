"""What things are and were made from, and bundles of them with their cards."""
