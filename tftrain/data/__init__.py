"""Data sets as examples that can be read in any order, and batches of them."""
