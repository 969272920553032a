"""Comparisons that anyone can run by hand; each prints a table with the machine it ran on."""
