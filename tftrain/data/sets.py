"""Data sets in TFDS format by name or folder: the embedded ones, and any that was prepared on this machine."""

import logging
import pathlib

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
    folder = pathlib.Path(dataset).expanduser()
    if not folder.exists():
        raise UserError(
            f"--dataset={dataset}: neither a data set that ships ({', '.join(embedded)}) nor a folder; "
            "give the folder of a prepared TFDS data set, the one that holds dataset_info.json"
        )
    if not (folder / "dataset_info.json").is_file():
        raise UserError(
            f"--dataset={dataset}: no dataset_info.json in it; it should be the folder of a prepared TFDS data set"
        )
    return folder


def read(folder: pathlib.Path, split: str, columns: tuple[str, ...]) -> tuple[dict[str, list], list[str]]:
    """Read some columns of a split into memory.

    ArrayRecord files are read as a TFDS data source, TFRecord files as a tf.data pipeline: each has only the one.

    Args:
      folder: from `find`.
      split: such as "train".
      columns: names of features; "label" has to be a ClassLabel.

    Returns:
      the columns by name, in the order of the files, and the label names.

    Raises:
      UserError: the set lacks the split or a column, or its labels are no classes.
    """
    import tensorflow_datasets as tfds

    # TFDS recommends OpenCV at each start; Pillow, which it falls back to, is what this package brings.
    logging.getLogger("absl").addFilter(lambda record: "OpenCV is not installed" not in record.getMessage())
    builder = tfds.builder_from_directory(folder)
    features = builder.info.features
    lacking = [name for name in columns if name not in features]
    if lacking:
        raise UserError(f"--dataset={folder}: it has no column {lacking[0]!r}; it has {', '.join(features)}")
    if split not in builder.info.splits:
        raise UserError(f"--dataset={folder}: it has no split {split!r}; it has {', '.join(builder.info.splits)}")
    if not isinstance(features["label"], tfds.features.ClassLabel):
        raise UserError(f"--dataset={folder}: its column 'label' is {features['label']}; a ClassLabel is needed")
    if builder.info.file_format == tfds.core.FileFormat.ARRAY_RECORD:
        source = builder.as_data_source(split)
        rows = source.__getitems__(range(len(source)))
    else:
        rows = tfds.as_numpy(builder.as_dataset(split=split, shuffle_files=False))
    table = {name: [] for name in columns}
    for row in rows:
        for name in columns:
            table[name].append(row[name])
    return table, features["label"].names
