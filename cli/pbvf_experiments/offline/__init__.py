"""The experiments of section 4.4: policies grown offline from a dataset."""
