"""What commands make beside their result: films, curves, transfers, lineage, lines of cards."""
