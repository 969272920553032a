"""Data sets in TFDS format by name or folder: the embedded ones, and any that was prepared on this machine."""

import logging
import pathlib

from tftrain import paths
from tftrain.errors import UserError

_EMBEDDED = pathlib.Path(__file__).parent / "embedded"
# The sets that ship: name -> folder below embedded/.
IMAGES = {"fashion_mnist_subset": "fashion_mnist_subset/1.0.0"}
TEXTS = {"wordnet_glosses": "wordnet_glosses/1.0.0"}


def find(dataset: str, embedded: dict[str, str]) -> pathlib.Path:
    """The TFDS-format folder (it holds dataset_info.json) of a data set; TensorFlow is not needed for it.

    Args:
      dataset: the name of an embedded set, or a path.
      embedded: the sets that fit the experiment, IMAGES or TEXTS.

    Raises:
      UserError: there is no such set.
    """
    if dataset in embedded:
        return _EMBEDDED / embedded[dataset]
    folder = paths.given("dataset", dataset)
    if not folder.exists():
        raise UserError(
            f"--dataset={dataset}: neither a data set that ships ({', '.join(embedded)}) nor a folder; "
            "give the folder of a prepared TFDS data set, the one that holds dataset_info.json"
        )
    if not (folder / "dataset_info.json").is_file():
        versions = sorted(file.parent for file in folder.glob("*/dataset_info.json")) if folder.is_dir() else []
        hint = f"; did you mean {versions[-1]}?" if versions else ""
        raise UserError(
            f"--dataset={dataset}: no dataset_info.json in it; give the folder of a prepared TFDS data set{hint}"
        )
    return folder


def read(folder: pathlib.Path, split: str, columns: tuple[str, ...]) -> tuple[dict[str, list], list[str]]:
    """Read some columns of a split into memory.

    Args:
      folder: from `find`.
      split: such as "train".
      columns: names of features; "label" has to be a ClassLabel.

    Returns:
      the columns by name, in the order of the files, and the label names.

    Raises:
      UserError: it cannot be read, it lacks the split or a column, or a label is no class.
    """
    import tensorflow_datasets as tfds

    # TFDS recommends OpenCV at each start; Pillow, which it falls back to, is what this package brings.
    logging.getLogger("absl").addFilter(lambda record: "OpenCV is not installed" not in record.getMessage())
    try:
        builder = tfds.builder_from_directory(folder)
    except Exception as error:  # TFDS raises whatever its parsers raise
        raise UserError(f"--dataset={folder}: TFDS cannot read it: {error}") from None
    features = builder.info.features
    lacking = [name for name in columns if name not in features]
    if lacking:
        raise UserError(f"--dataset={folder}: it has no column {lacking[0]!r}; it has {', '.join(sorted(features))}")
    if split not in builder.info.splits:
        raise UserError(f"--dataset={folder}: it has no split {split!r}; it has {', '.join(builder.info.splits)}")
    if not isinstance(features["label"], tfds.features.ClassLabel):
        raise UserError(f"--dataset={folder}: its column 'label' is {features['label']}; a ClassLabel is needed")
    table = {name: [] for name in columns}
    try:
        for row in _rows(builder, split):
            for name in columns:
                table[name].append(row[name])
    except Exception as error:  # as above
        raise UserError(f"--dataset={folder}: split {split!r} cannot be read: {error}") from None
    _check_labels(table["label"], features["label"].names, f"--dataset={folder}: split {split!r}")
    return table, features["label"].names


def _rows(builder, split: str):
    """A split's rows as dictionaries: ArrayRecord files can be read only as a source, TFRecord only as a pipeline."""
    import tensorflow_datasets as tfds

    if builder.info.file_format == tfds.core.FileFormat.ARRAY_RECORD:
        source = builder.as_data_source(split)
        return source.__getitems__(range(len(source)))
    return tfds.as_numpy(builder.as_dataset(split=split, shuffle_files=False))


def _check_labels(labels: list, names: list[str], place: str) -> None:
    """Refuse labels that are no class: on a CPU they would stop the training, on a GPU turn it into NaN."""
    if not labels:
        raise UserError(f"{place} has no rows")
    if len(names) < 2:
        raise UserError(f"{place} has {len(names)} class; two are needed")
    for row, label in enumerate(labels):
        if not 0 <= label < len(names):
            raise UserError(f"{place}, row {row}: label {label}; it should be from 0 to {len(names) - 1}")
