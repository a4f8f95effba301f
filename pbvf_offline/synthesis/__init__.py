"""Growing policies from random weights through a frozen critic."""
