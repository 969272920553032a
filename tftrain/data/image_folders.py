"""Images in class folders: ROOT/CLASS/.../IMAGE.

A class is a folder of the training data, its name the class's; the classes are in the order of their names. Hidden
files and folders are none (.ipynb_checkpoints, .DS_Store), nor is what systems leave behind (Thumbs.db, __MACOSX).
Everything else in a class folder, at any depth, should be an image.
"""

import dataclasses
import hashlib
import os
import pathlib

import numpy as np

from tftrain import paths
from tftrain.configuration import DataSource
from tftrain.data import image_checks
from tftrain.errors import UserError

BAD_FILES = ("refuse", "skip")
HOLD_OUT = 0.1
_TRAIN = ("train", "training")
_TEST = ("test", "testing", "validation", "valid", "val")
_LEFT_BEHIND = {"thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx"}


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ImageFolder:
    """An image source: files with labels.

    Attributes:
      root: the folder.
      files: the images' paths below it.
      labels: int32 [count].
      facts: int32 [count, 3]: width, height, and 1 for a grey image or 3 for one in colour.
    """

    root: str
    files: list[str]
    labels: np.ndarray
    facts: np.ndarray

    def read(self, row: int) -> bytes:
        """An image's file.

        Raises:
          OSError, ImageError: it cannot be read, though it could when it was checked.
        """
        return image_checks.read(os.path.join(self.root, self.files[row]))

    def name(self, row: int) -> str:
        """What messages call the image."""
        return paths.shown(os.path.join(self.root, self.files[row]))

    def take(self, rows: np.ndarray) -> "ImageFolder":
        """These rows alone."""
        return ImageFolder(self.root, [self.files[row] for row in rows], self.labels[rows], self.facts[rows])


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Folders:
    """What `read` found.

    Attributes:
      train, test: the images.
      label_names: the classes, as messages and files can show them.
      skipped: (path, reason) of each file that is left out.
      notes: lines for the banner, as (name, text).
    """

    train: ImageFolder
    test: ImageFolder
    label_names: list[str]
    skipped: list[tuple[str, str]]
    notes: tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True)
class _Place:
    """A folder of class folders, and how a message names it."""

    flag: str
    root: str

    def __str__(self):
        return f"--{self.flag}={paths.shown(self.root)}"


def read(source: DataSource, seed: int, bad_files: str = "refuse") -> Folders:
    """Find, check and divide the images of class folders.

    Args:
      source: `dataset` is ROOT with class folders in ROOT/train and ROOT/test (or validation, val), or in ROOT itself;
        or `train_data` and `test_data` hold them. Without a test part `hold_out` of each class is held out.
      seed: of the images that are held out.
      bad_files: one of BAD_FILES, what to do with files that are no images.

    Raises:
      UserError: there are no two classes, a class is empty or too small to hold out, the test part has another class,
        or there are bad files to refuse.
    """
    for name in ("train_split", "test_split"):
        if getattr(source, name) is not None:
            raise UserError(f"--{name}={getattr(source, name)}: is for TFDS sets; class folders have no such splits")
    train_place, test_place = _places(source)
    classes = _visible_folders(train_place)
    if len(classes) < 2:
        raise UserError(_too_few_classes(train_place, classes))
    train, bad = _read_place(train_place, classes)
    notes = []
    if test_place is not None:
        present = _visible_folders(test_place)
        unknown = [name for name in present if name not in set(classes)]
        if unknown:
            raise UserError(
                f"{test_place}: its class {paths.shown(unknown[0])!r} is not one of the {len(classes)} in {train_place}"
            )
        test, test_bad = _read_place(test_place, classes)
        bad += test_bad
        total = len(test.files) + len(train.files) + len(bad)
    else:
        total = len(train.files) + len(bad)
    if bad:
        notes.append(_bad_files(bad, total, bad_files, train_place))
    _check_counts(train, classes, train_place)
    if test_place is None:
        share = HOLD_OUT if source.hold_out is None else source.hold_out
        train, test = _hold_out(train, classes, share, seed, train_place)
        notes.append(("test data", f"{share:.0%} of each class, held out (--hold_out, --seed)"))
    elif not test.files:
        raise UserError(f"{test_place}: no images in its {len(present)} class folders")
    else:
        notes.append(("test data", paths.shown(test.root)))
        absent = [
            paths.shown(classes[i]) for i in np.flatnonzero(np.bincount(test.labels, minlength=len(classes)) == 0)
        ]
        if absent:
            more = f" and {len(absent) - 5} more" if len(absent) > 5 else ""
            notes.append(("note", f"no test images of {', '.join(absent[:5])}{more}"))
    return Folders(train, test, [paths.shown(name) for name in classes], bad, tuple(notes))


def _places(source: DataSource) -> tuple[_Place, _Place | None]:
    """Where the class folders of the training and the test data are; None: the latter are to be held out."""
    if source.train_data is not None:
        train = _Place("train_data", str(_folder("train_data", source.train_data)))
        inside = {name.lower() for name in _visible_folders(train)}
        if inside & {*_TRAIN} and inside <= {*_TRAIN, *_TEST}:
            raise UserError(f"{train}: holds {', '.join(sorted(inside))} and no classes; give --dataset={train.root}")
        if source.test_data is None:
            return train, None
        return train, _Place("test_data", str(_folder("test_data", source.test_data)))
    root = _Place("dataset", str(_folder("dataset", source.dataset)))
    found = {name.lower(): name for name in reversed(_visible_folders(root))}
    train = next((found[name] for name in _TRAIN if name in found), None)
    tests = [found[name] for name in _TEST if name in found]
    if train is None or not (tests or len(found) == 1):
        return root, None
    # A test folder without class folders holds images that nobody has labelled.
    places = [_Place("dataset", os.path.join(root.root, name)) for name in (train, *tests)]
    test = next((place for place in places[1:] if _visible_folders(place)), None)
    if tests and test is None:
        raise UserError(f"{places[1]}: no class folders in it; {', '.join(map(paths.shown, tests))} should hold some")
    if test is not None and source.hold_out is not None:
        raise UserError(f"--hold_out={source.hold_out:g}: {root} has a test part of its own, {paths.shown(test.root)}")
    return places[0], test


def _folder(flag: str, value: str) -> pathlib.Path:
    folder = paths.given(flag, value)
    if not folder.is_dir():
        what = "a file" if folder.exists() else "not there"
        raise UserError(f"--{flag}={paths.shown(value)}: {what}; a folder of class folders is needed")
    return folder


def _hidden(name: str) -> bool:
    return name.startswith(".") or name.lower() in _LEFT_BEHIND


def _visible_folders(place: _Place) -> list[str]:
    """The names of the folders in a place, in order."""
    try:
        with os.scandir(place.root) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir() and not _hidden(entry.name))
    except OSError as error:
        raise UserError(f"{place}: cannot be read ({error.strerror})") from None


def _files(place: _Place, name: str) -> list[str]:
    """The paths below the place of all files in a class folder, in order; each folder counts once, links or not."""
    found, seen, waiting = [], set(), [name]
    while waiting:
        folder = waiting.pop()
        path = os.path.join(place.root, folder)
        try:
            status = os.stat(path)
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(path) as entries:
                for entry in entries:
                    if not _hidden(entry.name):
                        (waiting if entry.is_dir() else found).append(os.path.join(folder, entry.name))
        except OSError as error:
            raise UserError(f"{place}: {paths.shown(folder)} cannot be read ({error.strerror})") from None
    return sorted(found)


def _read_place(place: _Place, classes: list[str]) -> tuple[ImageFolder, list[tuple[str, str]]]:
    """The images of a place, and (path, reason) of each file that is none."""
    files, labels = [], []
    for label, name in enumerate(classes):
        if os.path.isdir(os.path.join(place.root, name)):
            inside = _files(place, name)
            files += inside
            labels += [label] * len(inside)
    findings = image_checks.check(place.root, files)
    bad = [
        (paths.shown(os.path.join(place.root, file)), finding)
        for file, finding in zip(files, findings)
        if isinstance(finding, str)
    ]
    good = [i for i, finding in enumerate(findings) if not isinstance(finding, str)]
    facts = np.array([findings[i] for i in good], np.int32).reshape(-1, 3)
    labels = np.array(labels, np.int32)[good]
    return ImageFolder(place.root, [files[i] for i in good], labels, facts), bad


def _bad_files(bad: list[tuple[str, str]], total: int, bad_files: str, place: _Place) -> tuple[str, str]:
    """The banner's line about files that are skipped."""
    if bad_files == "skip":
        return "skipped", f"{len(bad):,} of {total:,} files, which cannot be read as images"
    raise UserError(
        f"{place}: {len(bad):,} of {total:,} files cannot be read as images; the first is {bad[0][0]}: {bad[0][1]}; "
        "mend or remove them, or give --bad_files=skip"
    )


def _too_few_classes(place: _Place, classes: list[str]) -> str:
    with os.scandir(place.root) as entries:
        files = sum(entry.is_file() and not _hidden(entry.name) for entry in entries)
    text = f"{place}: {len(classes)} class folder{'s' * (len(classes) != 1)} and {files:,} files beside; "
    if classes and len(inner := _visible_folders(_Place(place.flag, os.path.join(place.root, classes[0])))) >= 2:
        return f"{text}did you mean {paths.shown(os.path.join(place.root, classes[0]))}, with {len(inner)} folders?"
    return f"{text}at least two class folders are needed, each with images"


def _check_counts(train: ImageFolder, classes: list[str], place: _Place) -> None:
    counts = np.bincount(train.labels, minlength=len(classes))
    if not counts.all():
        name = paths.shown(classes[int(np.argmin(counts))])
        raise UserError(
            f"{place}: {counts.sum():,} images in {len(classes)} class folders, and none in {name!r}; "
            "fill or remove each empty one"
        )


def _hold_out(train: ImageFolder, classes, share: float, seed: int, place: _Place) -> tuple[ImageFolder, ImageFolder]:
    """Divide each class: `share` of its images, at least one, to test on, the rest to train on.

    Those with the least hashes of seed and path are held out, so that an image which comes or goes leaves nearly all
    others where they are.
    """
    counts = np.bincount(train.labels, minlength=len(classes))
    if counts.min() < 2:
        raise UserError(
            f"{place}: {len(train.files):,} images in {len(classes)} classes are too few to hold {share:.0%} out: "
            f"{paths.shown(classes[int(np.argmin(counts))])!r} has {counts.min()}, and each class needs 2; "
            "add images, or give test data"
        )
    hashes = [hashlib.sha256(b"%d %s" % (seed, os.fsencode(file))).digest() for file in train.files]
    held = np.zeros(len(train.files), bool)
    for label, count in enumerate(counts):
        rows = sorted(np.flatnonzero(train.labels == label), key=hashes.__getitem__)
        held[rows[: min(max(1, round(share * count)), count - 1)]] = True
    return train.take(np.flatnonzero(~held)), train.take(np.flatnonzero(held))
