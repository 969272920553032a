"""Finds texts that say the same, exactly and nearly."""

import collections
import math
import unicodedata
from collections.abc import Sequence

SHINGLE = 3


def key(text: str) -> str:
    """The text without what does not count: letters and digits alone, in one width (NFKC) and case."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", text).casefold()))


def near(keys: Sequence[str], threshold: float) -> list[tuple[int, int]]:
    """All pairs of texts whose sets of shingles (runs of SHINGLE characters) have a Jaccard index of `threshold`.

    Found exactly, by prefix filtering (Bayardo, Ma and Srikant, "Scaling up all pairs similarity search", 2007): of two
    sets that are so alike, the rarest shingles of the one, 1 - threshold of it, hold one of the rarest of the other.

    Args:
      keys: from `key`, none empty.
      threshold: above 0, up to 1.

    Returns:
      pairs of indices, the smaller first, in ascending order.
    """
    sets = [{text[i : i + SHINGLE] for i in range(max(1, len(text) - SHINGLE + 1))} for text in keys]
    counts = collections.Counter(shingle for shingles in sets for shingle in shingles)
    rank = {shingle: number for number, shingle in enumerate(sorted(counts, key=lambda s: (counts[s], s)))}
    sets = [{rank[shingle] for shingle in shingles} for shingles in sets]
    holders = collections.defaultdict(list)
    found = []
    for i in sorted(range(len(sets)), key=lambda i: len(sets[i])):
        size = len(sets[i])
        prefix = sorted(sets[i])[: size - math.ceil(threshold * size) + 1]
        for j in {j for shingle in prefix for j in holders[shingle]}:
            common = len(sets[i] & sets[j])
            if common >= threshold * (size + len(sets[j]) - common):
                found.append((min(i, j), max(i, j)))
        for shingle in prefix:
            holders[shingle].append(i)
    return sorted(found)


def groups(count: int, pairs: Sequence[tuple[int, int]]) -> list[list[int]]:
    """The groups that the pairs connect: indices in ascending order, single ones included."""
    parent = list(range(count))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = i = parent[parent[i]]
        return i

    for i, j in pairs:
        parent[root(j)] = root(i)
    found = collections.defaultdict(list)
    for i in range(count):
        found[root(i)].append(i)
    return list(found.values())
