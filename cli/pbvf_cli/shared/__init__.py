"""What the commands share: options, settings, output, errors."""
