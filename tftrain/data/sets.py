"""Data sets in TFDS format by name or folder: the embedded ones, those prepared on this machine, and those that TFDS
can fetch."""

import contextlib
import dataclasses
import functools
import importlib
import io
import json
import logging
import os
import pathlib
import re
import sys

import numpy as np

from tftrain import console, paths
from tftrain.configuration import DataSource
from tftrain.errors import UserError

_EMBEDDED = pathlib.Path(__file__).parent / "embedded"
# The sets that ship: name -> folder below embedded/.
IMAGES = {"fashion_mnist_subset": "fashion_mnist_subset/1.0.0"}
TEXTS = {"wordnet_glosses": "wordnet_glosses/1.0.0"}
INFO = "dataset_info.json"
_NAME = re.compile(r"(?P<name>[a-z][a-z0-9_]*)(/(?P<config>[\w.\-]+))?(:(?P<version>\d+\.\d+\.\d+))?")
# TFDS tries ten times, which takes minutes where there is no network.
_DOWNLOAD_TRIES = 2
# Images whose size is looked at where a set has images of several.
SAMPLE = 1000


@dataclasses.dataclass(frozen=True)
class Found:
    """A set that `find` found.

    Attributes:
      place: how messages name it, such as "--dataset=cifar10".
      folder: where it stands; None: TFDS is to fetch it.
      name: its name in TFDS; None where a folder was given.
      tfds_dir: the folder below which TFDS keeps its sets.
    """

    place: str
    folder: pathlib.Path | None
    name: str | None = None
    tfds_dir: pathlib.Path | None = None


def find(source: DataSource, embedded: dict[str, str]) -> Found:
    """Find a data set by name or folder; TensorFlow is not needed for it.

    Args:
      source: `dataset` is the name of an embedded set, a folder with dataset_info.json, or a name of TFDS:
        NAME[/CONFIG][:VERSION].
      embedded: the sets that fit the experiment, IMAGES or TEXTS.

    Raises:
      UserError: there is no such set.
    """
    place, dataset = f"--dataset={source.dataset}", source.dataset
    if dataset in embedded:
        return Found(place, _EMBEDDED / embedded[dataset])
    folder = paths.given("dataset", dataset)
    if folder.is_dir():
        if not (folder / INFO).is_file():
            versions = _versions(folder)
            hint = f"; did you mean {versions[-1]}?" if versions else ""
            raise UserError(f"{place}: no {INFO} in it; give the folder of a prepared TFDS data set{hint}")
        return Found(place, folder)
    named = _NAME.fullmatch(dataset)
    if folder.exists() or named is None:
        what = "is a file" if folder.exists() else "is not there"
        raise UserError(
            f"{place}: {what}; give a data set that ships ({', '.join(embedded)}), a name of TFDS, or a folder"
        )
    return _find_named(place, named, source, embedded)


def _find_named(place: str, named: re.Match, source: DataSource, embedded: dict[str, str]) -> Found:
    if source.tfds_dir is not None:
        base = paths.given("tfds_dir", source.tfds_dir)
        if not base.is_dir():
            raise UserError(f"--tfds_dir={source.tfds_dir}: no such folder")
    else:
        base = paths.given("tfds_dir", os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets")
    parent = base / named["name"]
    if named["config"]:
        parent = parent / named["config"]
    elif not _versions(parent) and parent.is_dir():
        configs = sorted(path.parent.parent for path in parent.glob(f"*/*/{INFO}"))
        if len(set(configs)) > 1:
            names = ", ".join(f"{named['name']}/{path.name}" for path in dict.fromkeys(configs))
            raise UserError(f"{place}: {base} has several of it; give one of {names}")
        parent = configs[0] if configs else parent
    versions = [path for path in _versions(parent) if named["version"] in (None, path.name)]
    if versions:
        return Found(place, versions[-1], source.dataset, base)
    there = [path.name for path in _versions(parent)]
    if there:
        raise UserError(f"{place}: {parent} has the version {', '.join(there)}")
    if named["name"] not in _known_names():
        raise UserError(
            f"{place}: neither a data set that ships ({', '.join(embedded)}), nor a folder, nor a name that TFDS "
            f"knows; {base} (--tfds_dir) has none of that name either"
        )
    return Found(place, None, source.dataset, base)


def _versions(folder: pathlib.Path) -> list[pathlib.Path]:
    """The folders of a set's versions, oldest first."""

    def number(path: pathlib.Path) -> list[int]:
        return [int(part) for part in re.findall(r"\d+", path.name)]

    return sorted((file.parent for file in folder.glob(f"*/{INFO}")), key=number)


def _known_names() -> list[str]:
    """What TFDS itself can prepare. Its community's sets are left out: to prepare one is to run a stranger's code."""
    import tensorflow_datasets as tfds

    return tfds.list_builders(with_community_datasets=False)


class TfdsSet:
    """A prepared set.

    Args:
      found: from `find`.
      source: names the splits, in TFDS' slicing syntax.
      label: the column of the labels.

    Attributes:
      place: how messages name it.
      label_names: the classes in the order of their numbers.
      train_split: what to train on.
      test_split: what to test on; None: the set has no such part, so that some of train_split is to be held out.

    Raises:
      UserError: it cannot be read or fetched, a split is not there, or its column of labels is no ClassLabel.
    """

    def __init__(self, found: Found, source: DataSource, label: str = "label"):
        import tensorflow_datasets as tfds

        # TFDS recommends OpenCV at each start; Pillow, which it falls back to, is what this package brings.
        logging.getLogger("absl").addFilter(_is_wanted)
        self.place, self._label = found.place, label
        try:
            if found.folder is None:
                self._builder = _fetch(found)
            else:
                _refuse_foreign_code(found.folder)
                self._builder = tfds.builder_from_directory(found.folder)
        except UserError:
            raise
        except Exception as error:  # TFDS raises whatever its parsers and its data sets raise
            raise UserError(f"{self.place}: TFDS cannot read it: {_first_line(error)}") from None
        self.features = self._builder.info.features
        self.check_columns(label)
        if not isinstance(self.features[label], tfds.features.ClassLabel):
            raise UserError(f"{self.place}: its column {label!r} is {self.features[label]}; a ClassLabel is needed")
        self.label_names = list(self.features[label].names)
        if len(self.label_names) < 2:
            raise UserError(f"{self.place} has {len(self.label_names)} class; two are needed")
        self.train_split = self._check_split("train_split", source.train_split or "train")
        self.test_split = None
        if source.test_split is not None:
            self.test_split = self._check_split("test_split", source.test_split)
        elif source.hold_out is None:
            parts = [split for split in ("test", "validation") if split in self._builder.info.splits]
            labelled = [split for split in parts if self._is_labelled(split)]
            self.test_split = labelled[0] if labelled else None

    @property
    def note(self) -> tuple[str, str]:
        """What is read, for the banner."""
        test = self.test_split or "a part held out"
        return "set", f"{self._builder.info.full_name}, {self.train_split} to train on and {test} to test on"

    def check_columns(self, *names: str) -> None:
        """Raise UserError if a column is not there."""
        there = self.features or {}
        for name in names:
            if name not in there:
                raise UserError(f"{self.place}: it has no column {name!r}; it has {', '.join(sorted(there))}")

    def read(self, split: str, columns: tuple[str, ...]) -> dict[str, list]:
        """Columns of a split by name, that of the labels included, in the order of the files; all of it in memory.

        Raises:
          UserError: a column is not there, a file cannot be read, or a label is no class.
        """
        self.check_columns(*columns)
        table = {name: [] for name in (*columns, self._label)}
        try:
            for row in self._rows(split):
                for name in table:
                    table[name].append(row[name])
        except Exception as error:  # as above
            raise UserError(f"{self.place}: split {split!r} cannot be read: {_first_line(error)}") from None
        self._check_labels(np.array(table[self._label]), split)
        return table

    def images(self, split: str) -> "TfdsImages":
        """The images of a split, read by number.

        Raises:
          UserError: as `read`, or the column "image" holds no images.
        """
        import tensorflow_datasets as tfds

        from tftrain.data.records import RecordError

        self.check_columns("image")
        feature = self.features["image"]
        if not isinstance(feature, tfds.features.Image) or feature.np_dtype not in (np.uint8, np.uint16):
            raise UserError(f"{self.place}: its column 'image' is {feature}; an Image of uint8 is needed")
        try:
            records = self._records(split)
            labels = records.labels(self._label)
        except RecordError as error:
            raise UserError(f"{self.place}: split {split!r} cannot be read: {error}") from None
        self._check_labels(labels, split)
        rows = np.arange(len(labels))
        return TfdsImages(records, rows, labels.astype(np.int32), f"{self.place}, {split}", feature.shape)

    def _records(self, split: str):
        import tensorflow_datasets as tfds

        from tftrain.data.records import Part, Records

        instructions = self._builder.info.splits[split].file_instructions
        parts = [Part(os.fspath(i.filename), i.skip, i.take) for i in instructions]
        return Records(parts, self._builder.info.file_format == tfds.core.FileFormat.ARRAY_RECORD)

    def _rows(self, split: str):
        """A split's rows as dictionaries: ArrayRecord files can be read only as a source, TFRecord as a pipeline."""
        import tensorflow_datasets as tfds

        if self._builder.info.file_format == tfds.core.FileFormat.ARRAY_RECORD:
            data = self._builder.as_data_source(split)
            return data.__getitems__(range(len(data)))
        return tfds.as_numpy(self._builder.as_dataset(split=split, shuffle_files=False))

    def _check_split(self, flag: str, split: str) -> str:
        splits = self._builder.info.splits
        try:
            count = splits[split].num_examples
        except Exception as error:  # as above
            raise UserError(
                f"{self.place}: it has no split {split!r} (--{flag}): {_first_line(error)}; it has {', '.join(splits)}"
            ) from None
        if count < 1:
            raise UserError(f"{self.place}: its split {split!r} (--{flag}) has no rows")
        return split

    def _is_labelled(self, split: str) -> bool:
        """Whether the first row has a label: the test parts of competitions have -1 alone."""
        if self._builder.info.splits[split].num_examples < 1:
            return False
        try:
            return next(iter(self._rows(f"{split}[:1]")))[self._label] >= 0
        except Exception:  # as above; `read` and `images` tell it
            return True

    def _check_labels(self, labels: np.ndarray, split: str) -> None:
        """Refuse labels that are no class: on a CPU they would stop the training, on a GPU turn it into NaN."""
        wrong = np.flatnonzero((labels < 0) | (labels >= len(self.label_names)))
        if len(wrong):
            unlabelled = "; the whole split seems to have no labels" if (labels == -1).all() else ""
            raise UserError(
                f"{self.place}: split {split!r}, row {wrong[0]}: label {labels[wrong[0]]}; it should be from 0 to "
                f"{len(self.label_names) - 1}{unlabelled}"
            )


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TfdsImages:
    """An image source.

    Attributes:
      records: serialised examples by number.
      rows: int64 [count], the numbers of the records.
      labels: int32 [count].
      place: where they come from, for messages.
      shape: of all images, height, width and channels; None where one may differ from another.
    """

    records: object
    rows: np.ndarray
    labels: np.ndarray
    place: str
    shape: tuple[int | None, int | None, int | None]

    @functools.cached_property
    def facts(self) -> np.ndarray:
        """int32 [n, 3]: width, height and channels, of SAMPLE images at most where they differ.

        Raises:
          UserError: one cannot be read.
        """
        depth = 1 if self.shape[2] == 1 else 3
        if None not in self.shape:
            return np.array([[self.shape[1], self.shape[0], depth]], np.int32)
        from PIL import Image

        found = []
        for row in np.unique(np.linspace(0, len(self.rows) - 1, SAMPLE).astype(int)):
            try:
                with Image.open(io.BytesIO(self.read(row))) as image:
                    found.append((*image.size, depth))
            except (ValueError, OSError) as error:
                raise UserError(f"{self.name(row)}: {_first_line(error)}") from None
        return np.array(found, np.int32)

    def read(self, row: int) -> bytes:
        """An image's file.

        Raises:
          ValueError: it cannot be read.
        """
        from tensorflow.core.example import example_pb2

        example = example_pb2.Example.FromString(self.records[int(self.rows[row])])
        return example.features.feature["image"].bytes_list.value[0]

    def name(self, row: int) -> str:
        """What messages call the image."""
        return f"{self.place}, row {self.rows[row]}"

    def take(self, rows: np.ndarray) -> "TfdsImages":
        """These rows alone."""
        return dataclasses.replace(self, rows=self.rows[rows], labels=self.labels[rows])


def _fetch(found: Found):
    """The builder of a set that TFDS has prepared just now.

    Raises:
      UserError: it cannot be fetched.
    """
    import tensorflow_datasets as tfds

    console.say(f"preparing    {found.name} below {found.tfds_dir}: TFDS fetches it, once")
    downloader = importlib.import_module("tensorflow_datasets.core.download.downloader")
    tries, downloader.MAX_RETRIES = getattr(downloader, "MAX_RETRIES", None), _DOWNLOAD_TRIES
    if not sys.stderr.isatty():
        tfds.disable_progress_bar()
    noise = logging.getLogger("urllib3.connectionpool")
    level = noise.level
    noise.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what a command prints there is its result
            builder = tfds.builder(found.name, data_dir=os.fspath(found.tfds_dir))
            builder.download_and_prepare()
    except Exception as error:  # whatever the set's own code raises
        raise UserError(
            f"{found.place}: neither prepared below {found.tfds_dir} (--tfds_dir), nor can TFDS fetch it: "
            f"{_first_line(error)}; prepare it where there is a network (tfds build {found.name}), copy it there"
        ) from None
    finally:
        downloader.MAX_RETRIES = tries
        noise.setLevel(level)
    return builder


def _refuse_foreign_code(folder: pathlib.Path) -> None:
    """Refuse a set whose features are of classes outside TFDS: TFDS would import the modules that it names.

    Raises:
      UserError: it is such a set, or its features cannot be read.
    """

    def classes(value):
        if isinstance(value, dict):
            for name, entry in value.items():
                if name in ("pythonClassName", "python_class_name", "type") and isinstance(entry, str):
                    yield entry
                yield from classes(entry)
        elif isinstance(value, list):
            for entry in value:
                yield from classes(entry)

    for file in (folder / "features.json", folder / INFO):
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(f"--dataset={folder}: {file.name} cannot be read: {_first_line(error)}") from None
        # Of the description, that field alone names classes.
        for name in classes(content.get("features") if file.name == INFO and isinstance(content, dict) else content):
            if not re.fullmatch(r"tensorflow_datasets\.core\.features\.[\w.]+", name):
                raise UserError(
                    f"--dataset={folder}: {file.name} names {name[:100]!r}, which is not TFDS' own: it is not imported"
                )


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0][:300] if lines else type(error).__name__).rstrip(".")


def _is_wanted(record: logging.LogRecord) -> bool:
    return "OpenCV is not installed" not in record.getMessage()
