"""Labelled texts from wherever a person has them: files of one's own, TFDS, the sets that ship or are installed."""

import dataclasses
import pathlib

import numpy as np

from tftrain import paths
from tftrain.configuration import DataSource
from tftrain.data import chinese_reviews, labels, sets, tables
from tftrain.data.tables import Columns, Table
from tftrain.errors import UserError

HOLD_OUT = 0.1


@dataclasses.dataclass(frozen=True)
class Found:
    """Where texts are; `read` reads them.

    Attributes:
      kind: "tables", "reviews" or "tfds".
      train: the training file, the package's folder, or what `sets.find` gave.
      test: the test file; None: a part of `train`.
    """

    kind: str
    train: object
    test: pathlib.Path | None = None


@dataclasses.dataclass(frozen=True)
class Part:
    """Texts with the numbers of their classes.

    Attributes:
      texts: str [count].
      pairs: the second texts, str [count]; None where there is one text.
      labels: int32 [count].
    """

    texts: list[str]
    pairs: list[str] | None
    labels: np.ndarray


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Texts to train on and to test on.

    Attributes:
      train, test: `train` is None where only the test part was asked for and stands apart.
      label_names: the classes in the order of their numbers.
      columns: what was read.
      notes: lines for the banner, as (name, text).
    """

    train: Part | None
    test: Part
    label_names: list[str]
    columns: Columns
    notes: list[tuple[str, str]]


def find(source: DataSource) -> Found:
    """Find the texts that a person named; TensorFlow is not needed for it.

    Raises:
      UserError: there are none.
    """
    if source.train_data is not None:
        test = source.test_data
        found = Found("tables", tables.given("train_data", source.train_data), test and tables.given("test_data", test))
    elif source.dataset == chinese_reviews.NAME:
        found = Found("reviews", chinese_reviews.find())
    else:
        path = None if source.dataset in sets.TEXTS else paths.given("dataset", source.dataset)
        if path is not None and path.is_file():
            found = Found("tables", tables.given("dataset", source.dataset))
        elif path is not None and path.is_dir() and tables.holds_any(path):
            found = Found("tables", *tables.in_folder(path))
        else:
            return Found("tfds", sets.find(source, sets.TEXTS))
    for name in ("train_split", "test_split", "tfds_dir"):
        if getattr(source, name) is not None:
            raise UserError(f"--{name}={getattr(source, name)}: is for TFDS sets; these are files")
    if found.test is not None and source.hold_out is not None:
        raise UserError(f"--hold_out={source.hold_out:g}: {found.test} is there to test on; leave the one or the other")
    return found


def read(
    found: Found,
    source: DataSource,
    wanted: Columns,
    *,
    empty_cells: str = "refuse",
    seed: int = 0,
    label_names: list[str] | None = None,
) -> Corpus:
    """Read the texts into memory.

    Args:
      wanted: the columns that a person named.
      empty_cells: one of tables.EMPTY_CELLS.
      seed: of the part that is held out of files.
      label_names: the classes that a network was trained with; then the test part alone is read. None: those of the
        training part.

    Raises:
      UserError: they cannot be read, or a label of the test part is none of the training part's.
    """
    notes = []
    if found.kind == "tfds":
        return _read_tfds(found.train, source, wanted, seed, label_names)
    if found.kind == "reviews":
        texts, numbers, dropped = chinese_reviews.read(found.train)
        notes.append(("reviews", dropped))
        words = [chinese_reviews.LABEL_NAMES[number] for number in numbers]
        columns = Columns("text", None, "label")
        train, test = Table(texts, None, words, list(range(len(texts))), chinese_reviews.NAME, columns, []), None
        seed = chinese_reviews.SPLIT_SEED
    else:
        train = test = None
        if label_names is None or found.test is None:
            train = tables.read(found.train, wanted, empty_cells)
        if found.test is not None:
            test = tables.read(found.test, train.columns if train else wanted, empty_cells)
        columns = (train or test).columns
        files = " and ".join(str(path) for path in (found.train, found.test) if path is not None)
        pair = f" and {columns.pair!r}" if columns.pair else ""
        notes.append(("columns", f"text {columns.text!r}{pair}, label {columns.label!r} of {files}"))
        notes += [
            ("left out", f"{table.path}: an empty text or label in {tables.listed(table.dropped, 'line')}")
            for table in (train, test)
            if table and table.dropped
        ]
    names = label_names or labels.classes(train.labels, train.place)
    notes.append(("labels", labels.mapping(names)))
    whole = train and _part(train, names)
    if test is not None:
        return Corpus(whole, _part(test, names), names, columns, notes)
    return _divided(whole, source, seed, names, columns, notes)


def _part(table: Table, names: list[str]) -> Part:
    return Part(table.texts, table.pairs, labels.encode(table.labels, names, table.place))


def _rows(part: Part, rows: np.ndarray) -> Part:
    pairs = part.pairs and [part.pairs[row] for row in rows]
    return Part([part.texts[row] for row in rows], pairs, part.labels[rows])


def _read_tfds(found: sets.Found, source: DataSource, wanted: Columns, seed: int, label_names: list | None) -> Corpus:
    data = sets.TfdsSet(found, source, wanted.label or "label")
    columns = tables.resolve(data.features, wanted, data.place)
    if label_names is not None and label_names != data.label_names:
        raise UserError(
            f"{data.place}: its classes are {labels.listed(data.label_names)}; those of the training were "
            f"{labels.listed(label_names)}"
        )
    notes = [data.note, ("labels", labels.mapping(data.label_names))]
    if data.test_split is None:
        return _divided(_tfds_part(data, data.train_split, columns), source, seed, data.label_names, columns, notes)
    train = _tfds_part(data, data.train_split, columns) if label_names is None else None
    return Corpus(train, _tfds_part(data, data.test_split, columns), data.label_names, columns, notes)


def _tfds_part(data: sets.TfdsSet, split: str, columns: Columns) -> Part:
    table = data.read(split, tuple(name for name in (columns.text, columns.pair) if name is not None))
    found = []
    for name in (columns.text, columns.pair):
        texts = []
        for row, text in enumerate(table[name] if name else ()):
            if not isinstance(text, bytes):
                raise UserError(f"{data.place}: its column {name!r} holds a {type(text).__name__}; a string is needed")
            try:
                texts.append(text.decode("utf-8"))
            except UnicodeDecodeError as error:
                raise UserError(f"{data.place}: split {split!r}, row {row}: no UTF-8 text: {error}") from None
        found.append(texts if name else None)
    return Part(*found, np.array(table[columns.label], np.int32))


def _divided(whole: Part, source: DataSource, seed: int, names: list[str], columns: Columns, notes: list) -> Corpus:
    """Some of the texts held out to test on."""
    share = source.hold_out or HOLD_OUT
    train_rows, test_rows = labels.hold_out(whole.labels, share, seed)
    notes.append(
        ("held out", f"{len(test_rows):,} of {len(whole.texts):,} texts to test on, {share:.3g} of each class")
    )
    return Corpus(_rows(whole, train_rows), _rows(whole, test_rows), names, columns, notes)
