"""Writing datasets: from episodes, or from the episodes of other datasets."""
