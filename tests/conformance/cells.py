"""The combinations that have to train, thinned so that every pair of values still occurs."""

import itertools

FACTORS = {
    "network": ("plain", "normalised", "bert"),
    "replicas": (1, 2, 4),
    "precision": ("float32", "mixed_bfloat16", "mixed_float16"),
    "xla": (False, True),
    "optimizer": ("sgd", "adam", "adamw"),
}


def feasible(cell: tuple) -> bool:
    """Whether a combination can run on the CPU: float16 is refused there without XLA."""
    values = dict(zip(FACTORS, cell))
    return values["precision"] != "mixed_float16" or values["xla"]


def cost(cell: tuple) -> int:
    """Roughly how long a cell takes: each replica is traced and compiled by itself."""
    values = dict(zip(FACTORS, cell))
    return values["replicas"] * (4 if values["xla"] else 1) * (3 if values["network"] == "bert" else 1)


def pairs(cell: tuple) -> set[tuple]:
    """The pairs of values in a cell, each as ((factor, value), (factor, value))."""
    return set(itertools.combinations(zip(FACTORS, cell), 2))


def pair_cover() -> list[tuple]:
    """Feasible cells that hold every pair of values that a feasible cell can hold.

    Greedy: each time the cell with the most new pairs, of these the cheapest.
    """
    candidates = [cell for cell in itertools.product(*FACTORS.values()) if feasible(cell)]
    missing = set().union(*map(pairs, candidates))
    chosen = []
    while missing:
        best = max(candidates, key=lambda cell: (len(pairs(cell) & missing), -cost(cell)))
        chosen.append(best)
        missing -= pairs(best)
    return chosen
