"""Fitting a critic to data: the loop, validation, augmentation and the critic file."""
