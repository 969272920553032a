"""Recipes: each module is a docstring with the command and the result to expect, flag defaults, and a call."""
