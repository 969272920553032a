"""Rows of CSV, TSV, JSON Lines and plain text files, read one after the other; and tables of labelled texts.

| name ends in | format |
|---|---|
| .csv | comma-separated with a header (RFC 4180): quoted cells may hold commas, line breaks and doubled quotes |
| .tsv | tab-separated with a header; quotes are characters like any other |
| .jsonl, .ndjson, .json | JSON Lines: an object a line |
| .txt | a text a line, the column "text" |

each also with .gz behind it. UTF-8 with or without a byte-order mark, or UTF-16 with one; lines end in LF or CRLF;
blank lines are ignored. A cell that says null, NA or None holds that word.
"""

import contextlib
import csv
import dataclasses
import gzip
import io
import json
import pathlib
import zlib
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from tftrain import paths
from tftrain.errors import UserError

FORMATS = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".txt": "txt"}
# What is taken for texts and labels where no column is named: the first that is there.
TEXT_COLUMNS = ("text", "sentence", "review", "content")
PAIR_COLUMNS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("text_a", "text_b"),
)
LABEL_COLUMNS = ("label", "labels")
EMPTY_CELLS = ("refuse", "drop")
# Places that a message lists.
_LISTED = 10


@dataclasses.dataclass(frozen=True)
class Columns:
    """The names of the columns that are read; None: the usual ones.

    Attributes:
      text: the text, or a pair's first.
      pair: a pair's second text; None where there is one text.
      label: the label; None where there is none to read.
    """

    text: str | None = None
    pair: str | None = None
    label: str | None = None


@dataclasses.dataclass(frozen=True)
class Table:
    """Labelled texts from a file.

    Attributes:
      texts, pairs: one a row; pairs is None where there is one text.
      labels: as in the file: a str, int, float or bool a row.
      lines: the number of each row's first line in the file, from 1.
      path: the file.
      columns: what was read.
      dropped: the lines of rows with an empty cell, which were left out.
    """

    texts: list[str]
    pairs: list[str] | None
    labels: list
    lines: list[int]
    path: str
    columns: Columns
    dropped: list[int]

    def place(self, row: int) -> str:
        """Where a row stands, for messages."""
        return f"{self.path}, line {self.lines[row]}"


def format_of(path: pathlib.Path) -> str:
    """The format that a file's name tells.

    Raises:
      UserError: it tells none.
    """
    name = path.name.lower().removesuffix(".gz")
    found = FORMATS.get(pathlib.PurePath(name).suffix)
    if found is None:
        raise UserError(f"{path}: its name should end in {', '.join(FORMATS)} or one of these and .gz")
    return found


def rows(source: pathlib.Path | BinaryIO, format: str | None = None, place: str | None = None) -> Iterator:
    """Read a table row by row, as (line, cells): the row's first line in the file, from 1, and its cells by column.

    Cells are strings; in JSON Lines, whatever JSON has.

    Args:
      source: a file, or an open binary stream such as sys.stdin.buffer.
      format: one of FORMATS' values; needed for a stream; None: told by the file's name.
      place: what messages call it; None: the path.

    Raises:
      UserError: while it is iterated: a line that cannot be read, which is named.
    """
    place = str(source) if place is None else place
    with contextlib.ExitStack() as held:
        if isinstance(source, pathlib.Path):
            format = format_of(source) if format is None else format
            try:
                opened = gzip.open(source) if source.name.lower().endswith(".gz") else open(source, "rb")
            except OSError as error:
                raise UserError(f"{place}: {error.strerror}") from None
            source = held.enter_context(opened)
        reader = {"csv": _csv, "tsv": _tsv, "jsonl": _json_lines, "txt": _plain}[format]
        yield from reader(_lines(source, place), place)


def read(path: pathlib.Path, wanted: Columns, empty: str = "refuse") -> Table:
    """Read a file of labelled texts into memory.

    Args:
      wanted: the columns that a person named.
      empty: one of EMPTY_CELLS: whether a row with an empty or blank text or label is refused or left out.

    Raises:
      UserError: a line cannot be read, a column is missing, cells are empty, or there are no rows.
    """
    place, columns = str(path), None
    texts, pairs, labels, lines, empties = [], [], [], [], []
    for line, cells in rows(path):
        if columns is None:
            columns = resolve(list(cells), wanted, place)
        text, pair = texts_of(cells, columns, f"{place}, line {line}")
        label = cells.get(columns.label)
        if isinstance(label, (list, dict)):
            found = json.dumps(label)[:40]
            raise UserError(f"{place}, line {line}: {columns.label!r} is {found}; a word or a number is needed")
        if label is None or (isinstance(label, str) and not label.strip()) or text is None or pair is None:
            empties.append(line)
            continue
        texts.append(text)
        pairs.append(pair)
        labels.append(label)
        lines.append(line)
    if empties and empty == "refuse":
        raise UserError(
            f"{place}: an empty text or label in {listed(empties, 'line')}; fill them in, or leave them out with "
            "--empty_cells=drop"
        )
    if not texts:
        raise UserError(f"{place}: no rows in it" + (" but with empty cells" if empties else ""))
    return Table(texts, pairs if columns.pair else None, labels, lines, place, columns, empties)


def resolve(names: Iterable[str], wanted: Columns, place: str, labelled: bool = True) -> Columns:
    """The columns to read, of those that are there.

    Where no text column is named, it is the first of TEXT_COLUMNS that is no half of a pair which is there, else the
    first of PAIR_COLUMNS.

    Raises:
      UserError: one is missing.
    """
    names = list(names)
    text, pair = wanted.text, wanted.pair
    if text is None:
        there = [both for both in PAIR_COLUMNS if set(both) <= set(names)]
        halves = {name for both in there for name in both}
        text = next((name for name in TEXT_COLUMNS if name in names and (pair or name not in halves)), None)
        if text is None and pair is None:
            text, pair = there[0] if there else (None, None)
        if text is None:
            raise UserError(_lacking(names, "text", "text_column", f"none of {', '.join(TEXT_COLUMNS)}", place))
    label = wanted.label
    if labelled and label is None:
        label = next((name for name in LABEL_COLUMNS if name in names), None)
        if label is None:
            raise UserError(_lacking(names, "label", "label_column", f"none of {', '.join(LABEL_COLUMNS)}", place))
    found = Columns(text, pair, label if labelled else None)
    for flag, name in (("text_column", text), ("text_pair_column", pair), ("label_column", found.label)):
        if name is not None and name not in names:
            raise UserError(_lacking(names, name, flag, f"no {name!r}", place))
    return found


def texts_of(cells: dict, columns: Columns, place: str) -> tuple[str | None, str | None]:
    """A row's text, and the second of a pair ("" where there is one text); None for one that is empty or blank.

    Raises:
      UserError: it is no text.
    """
    found = []
    for name in (columns.text, columns.pair):
        if name is None:
            found.append("")
            continue
        value = cells.get(name)
        if value is not None and not isinstance(value, str):
            raise UserError(f"{place}: {name!r} is {json.dumps(value)[:40]}; a string is needed")
        found.append(value if value and value.strip() else None)
    return tuple(found)


def listed(numbers: list[int], unit: str) -> str:
    """Such as "2 rows: lines 4, 17"."""
    shown = ", ".join(f"{number}" for number in numbers[:_LISTED])
    more = f" and {len(numbers) - _LISTED:,} more" if len(numbers) > _LISTED else ""
    many = "s" if len(numbers) > 1 else ""
    return f"{len(numbers):,} row{many}: {unit}{many} {shown}{more}"


def in_folder(folder: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path | None]:
    """The files train.* and test.* (else validation.*, valid.* or dev.*) of a folder; None where there is no second.

    Raises:
      UserError: there is no train.*, or there are several.
    """

    def find(stem: str) -> pathlib.Path | None:
        found = sorted(path for path in files if path.name.lower().split(".")[0] == stem)
        if len(found) > 1:
            raise UserError(
                f"{folder}: {' and '.join(path.name for path in found)} are both there; keep one, or name the two "
                "files with --train_data and --test_data"
            )
        return found[0] if found else None

    files = [path for path in folder.iterdir() if path.is_file() and _has_format(path)]
    train = find("train")
    if train is None:
        names = sorted(path.name for path in folder.iterdir())
        holds = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "") if names else "nothing"
        raise UserError(
            f"{folder}: no train.csv, train.tsv or train.jsonl in it; it holds {holds}; name the files with "
            "--train_data and --test_data"
        )
    return train, next(filter(None, map(find, ("test", "validation", "valid", "dev"))), None)


def holds_any(folder: pathlib.Path) -> bool:
    """Whether a folder holds a table, and no TFDS set."""
    return not (folder / "dataset_info.json").exists() and any(map(_has_format, folder.iterdir()))


def given(flag: str, value: str) -> pathlib.Path:
    """The table's file that a flag names.

    Raises:
      UserError: no such file, or its name tells no format.
    """
    path = paths.given(flag, value)
    if not path.exists():
        raise UserError(f"--{flag}={value}: no such file")
    if path.is_dir():
        raise UserError(f"--{flag}={value}: a folder; a file is needed")
    format_of(path)
    return path


def _has_format(path: pathlib.Path) -> bool:
    with contextlib.suppress(UserError):
        return bool(format_of(path))
    return False


def _lacking(names: list[str], what: str, flag: str, missing: str, place: str) -> str:
    """The message for a column that is not there."""
    hint = ""
    if len(names) == 1 and any(separator in names[0] for separator in (";", "\t", "|")):
        hint = "; cells are separated by commas in .csv and by tabs in .tsv"
    shown = ", ".join(repr(name) for name in names[:12]) + (" and more" if len(names) > 12 else "")
    return f"{place}: no {what} column: it has {missing}, but {shown}; name it with --{flag}{hint}"


def _lines(stream: BinaryIO, place: str) -> Iterator[tuple[int, str]]:
    """Number and text of each line, its end included."""
    stream = stream if hasattr(stream, "peek") else io.BufferedReader(stream)
    number = 0
    try:
        wide = stream.peek(2)[:2] in (b"\xff\xfe", b"\xfe\xff")
        if wide:  # newline="\n" splits there alone, and keeps "\r\n"
            stream = io.TextIOWrapper(stream, encoding="utf-16", newline="\n")
        for line in stream:
            number += 1
            text = line if wide else line.decode("utf-8-sig" if number == 1 else "utf-8")
            if "\0" in text:
                raise UserError(f"{place}, line {number}: a NUL character: no text file, or UTF-16 without its mark")
            yield number, text
    except UnicodeDecodeError as error:
        number += wide  # the line under way
        raise UserError(
            f"{place}, line {number}: not {'UTF-16' if wide else 'UTF-8'} ({error.reason} at byte {error.start + 1}); "
            "iconv -f CHARSET -t UTF-8 converts it"
        ) from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{place}, after line {number}: its compressed data are damaged: {error}") from None
    except OSError as error:
        raise UserError(f"{place}, after line {number}: {error.strerror}") from None


def _table(cells: Iterator[tuple[int, list[str]]], place: str) -> Iterator[tuple[int, dict]]:
    """Rows of lists as dictionaries by the names in the first."""
    header = None
    for line, values in cells:
        if header is None:
            header, header_line = [name.strip() for name in values], line
            double = sorted({name for name in header if name and header.count(name) > 1})
            if double:
                raise UserError(f"{place}, line {line}: the column {double[0]!r} is there twice")
        elif len(values) != len(header):
            raise UserError(
                f"{place}, line {line}: {len(values)} cells, where line {header_line} names {len(header)} columns"
            )
        else:
            yield line, dict(zip(header, values))


def _csv(lines: Iterator, place: str) -> Iterator:
    return _table(_csv_cells(lines, place), place)


def _csv_cells(lines: Iterator, place: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader((text for _, text in lines), strict=True)
    while True:
        first = reader.line_num + 1
        try:
            values = next(reader, None)
        except csv.Error as error:
            raise UserError(f"{place}, line {first}: {_csv_message(str(error), reader.line_num)}") from None
        if values is None:
            return
        if len(values) > 1 or (values and values[0].strip()):
            yield first, values


def _csv_message(message: str, line: int) -> str:
    if "unexpected end of data" in message:
        return 'a double quote is opened in this row and not closed; write one inside a quoted cell as ""'
    if "field larger than" in message:
        limit = csv.field_size_limit()
        return f"a cell of more than {limit:,} characters (up to line {line}); is a double quote not closed?"
    if "new-line character" in message:
        return "a carriage return inside a cell without quotes"
    return f"no CSV (at line {line}): {message}"


def _tsv(lines: Iterator, place: str) -> Iterator:
    return _table(
        ((number, text.rstrip("\r\n").split("\t")) for number, text in lines if text.strip(" \r\n")),
        place,
    )


def _json_lines(lines: Iterator, place: str) -> Iterator[tuple[int, dict]]:
    def refuse(constant):
        raise ValueError(f"{constant} is not JSON")

    for number, text in lines:
        if not text.strip():
            continue
        try:
            row = json.loads(text, parse_constant=refuse)
            text.isascii() and json.dumps(row, ensure_ascii=False).encode("utf-8")  # half a surrogate pair, as \ud800
        except UnicodeEncodeError:
            raise UserError(f"{place}, line {number}: half a surrogate pair, which is no character") from None
        except (ValueError, RecursionError) as error:
            raise UserError(f"{place}, line {number}: no JSON: {error}; each line should be an object") from None
        if not isinstance(row, dict):
            raise UserError(f"{place}, line {number}: {text.strip()[:20]} is no JSON object; each line should be one")
        yield number, row


def _plain(lines: Iterator, place: str) -> Iterator[tuple[int, dict]]:
    for number, text in lines:
        if text.strip():
            yield number, {"text": text.rstrip("\r\n")}
