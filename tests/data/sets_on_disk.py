"""Writes small data sets in TFDS format."""

import pathlib

import numpy as np
import tensorflow_datasets as tfds


def write_set(
    parent: pathlib.Path,
    column: str,
    splits: dict,
    label_names: list[str] | None,
    file_format: str = "array_record",
    feature=None,
) -> pathlib.Path:
    """Write a set with the column "image" or "text" and the column "label"; its folder.

    Args:
      splits: split -> list of {column: ..., "label": ...}.
      label_names: None: the labels are bare numbers.
      feature: the column's TFDS feature, where it is another than an RGB image or a text.
    """
    images = tfds.features.Image(shape=(None, None, 3), dtype=np.uint8)
    first = feature or {"image": images, "text": tfds.features.Text()}[column]
    label = tfds.features.ClassLabel(names=label_names) if label_names else tfds.features.Scalar(np.int64)
    tfds.dataset_builders.store_as_tfds_dataset(
        name="tiny",
        version="1.0.0",
        data_dir=parent,
        features=tfds.features.FeaturesDict({column: first, "label": label}),
        split_datasets={name: [(str(i), row) for i, row in enumerate(rows)] for name, rows in splits.items()},
        file_format=file_format,
        disable_shuffling=True,
    )
    return parent / "tiny" / "1.0.0"
