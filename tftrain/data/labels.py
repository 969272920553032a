"""Labels as a person writes them, and the classes that they name.

The rule: a label is a word or a whole number. Whole numbers may be written as floats: 1, "1", 1.0, "1.0" and "01" are
all the class "1"; -1 is a class like any other. true and false of JSON are the words "true" and "false". Blanks around
a word do not count, upper and lower case do. A number that is not whole is refused: it is no class.

Classes are numbered in numeric order where all are numbers, else in the order of their code points.
"""

import re
from collections.abc import Callable, Sequence

import numpy as np

from tftrain.errors import UserError

_WHOLE = re.compile(r"[+-]?\d+(\.0*)?", re.ASCII)
_BROKEN = re.compile(r"[+-]?(\d+\.\d*|\.\d+)", re.ASCII)
# Classes that a line lists.
_LISTED = 12


def class_of(label: str | int | float | bool) -> str:
    """The name of the class that a label means.

    Raises:
      ValueError: it can be no class; the message says why.
    """
    if isinstance(label, bool):
        return str(label).lower()
    if isinstance(label, (int, np.integer)):
        return str(int(label))
    if isinstance(label, float):
        if not label.is_integer():
            raise ValueError(f"label {label} is not a whole number; classes are words or whole numbers")
        return str(int(label))
    if not isinstance(label, str):
        raise ValueError(f"label {label!r} is neither a word nor a number")
    word = label.strip()
    if _WHOLE.fullmatch(word):
        return str(int(word.partition(".")[0]))
    if _BROKEN.fullmatch(word):
        raise ValueError(f"label {word} is not a whole number; classes are words or whole numbers")
    return word


def classes(labels: Sequence, place: Callable[[int], str]) -> list[str]:
    """The names of the classes among training labels, in the order of their numbers.

    Args:
      labels: as in the file.
      place: names a row for messages.

    Raises:
      UserError: a label can be no class, or there are fewer than two classes.
    """
    known = {}
    for row, label in enumerate(labels):
        if _key(label) not in known:
            known[_key(label)] = _checked(label, row, place)
    names = set(known.values())
    if len(names) < 2:
        raise UserError(f"{place(0)} and after: all labels are {min(names, default='none')!r}; two classes are needed")
    return sorted(names, key=int if all(_WHOLE.fullmatch(name) for name in names) else None)


def encode(labels: Sequence, names: Sequence[str], place: Callable[[int], str]) -> np.ndarray:
    """The classes' numbers of labels, int32 [count].

    Args:
      labels: as in the file.
      names: the classes that the network was trained with, in the order of their numbers.
      place: names a row for messages.

    Raises:
      UserError: a label is none of them.
    """
    numbers = {class_of(name): number for number, name in enumerate(names)}
    numbers |= {name: number for number, name in enumerate(names)}
    known = {}
    encoded = np.empty(len(labels), np.int32)
    for row, label in enumerate(labels):
        number = known.get(_key(label))
        if number is None:
            name = _checked(label, row, place)
            number = numbers.get(label.strip() if isinstance(label, str) else name, numbers.get(name))
            if number is None:
                raise UserError(f"{place(row)}: label {name!r} is not among the training labels: {listed(names)}")
            known[_key(label)] = number
        encoded[row] = number
    return encoded


def listed(names: Sequence[str]) -> str:
    """The first classes, separated by commas."""
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def mapping(names: Sequence[str]) -> str:
    """Which number each class has, for the banner."""
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(f"{number} = {name}" for number, name in enumerate(names[:_LISTED])) + more


def hold_out(labels: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Divide rows into those to train on and those to test on, with the same share of each class.

    Of each class, `share` of its rows, rounded, and at least one, are held out, drawn with `seed`; a class with one row
    keeps it for training.

    Args:
      labels: int [count].

    Returns:
      the two parts' row numbers in ascending order, int64.

    Raises:
      UserError: no class has two rows.
    """
    generator = np.random.default_rng(seed)
    held = []
    for label in np.unique(labels):
        rows = generator.permutation(np.flatnonzero(labels == label))
        if len(rows) > 1:
            held.append(rows[: min(max(1, round(share * len(rows))), len(rows) - 1)])
    if not held:
        raise UserError(
            f"--hold_out={share:g}: {len(labels)} rows of as many classes leave none to test on; give test data"
        )
    test = np.sort(np.concatenate(held))
    return np.setdiff1d(np.arange(len(labels)), test), test


def _key(label) -> tuple:
    """Equal for equal labels of one type: True, 1 and 1.0 are equal in Python."""
    return type(label), label


def _checked(label, row: int, place: Callable[[int], str]) -> str:
    try:
        return class_of(label)
    except ValueError as error:
        raise UserError(f"{place(row)}: {error}") from None
