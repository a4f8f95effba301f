"""The dataset format: schema, rules, manifest and card."""
