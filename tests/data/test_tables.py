import gzip
import io
import json

import pytest

from tftrain.data import tables
from tftrain.data.tables import Columns
from tftrain.errors import UserError

ROWS = [{"text": "one, two", "label": "a"}, {"text": 'say "hi"\nand go', "label": "b"}]
CSV = 'text,label\n"one, two",a\n"say ""hi""\nand go",b\n'
JSONL = "".join(json.dumps(row) + "\n" for row in ROWS)


def write(folder, name: str, content: str | bytes):
    path = folder / name
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def cells(path, **options) -> list[dict]:
    return [row for _, row in tables.rows(path, **options)]


def refusal(path, **options) -> str:
    with pytest.raises(UserError) as caught:
        tables.read(path, Columns(), **options)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)
    return str(caught.value)[len(str(path)) :]


@pytest.mark.parametrize(
    "name, content",
    [("x.csv", CSV), ("x.csv.gz", CSV), ("X.CSV", CSV), ("x.jsonl", JSONL), ("x.ndjson.gz", JSONL), ("x.json", JSONL)],
)
def test_the_name_tells_the_format(tmp_path, name, content):
    assert cells(write(tmp_path, name, content)) == ROWS


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_byte_order_marks_and_line_ends_do_not_count(tmp_path, encoding, end):
    content = f'text,label{end}"好,{end}书",1{end}{end}坏,0{end}'
    path = write(tmp_path, "x.csv", content.encode(encoding))
    assert list(tables.rows(path)) == [
        (2, {"text": f"好,{end}书", "label": "1"}),
        (5, {"text": "坏", "label": "0"}),
    ]
    lines = f'{end}{{"text": "好", "label": 1}}{end} {end}{{"text": "坏", "label": 0}}'
    path = write(tmp_path, "x.jsonl", lines.encode(encoding))
    assert list(tables.rows(path)) == [(2, {"text": "好", "label": 1}), (4, {"text": "坏", "label": 0})]


def test_quotes_are_characters_in_tsv(tmp_path):
    path = write(tmp_path, "x.tsv", 'label\ttext\n1\t"a", b\n0\t"\n')
    assert cells(path) == [{"label": "1", "text": '"a", b'}, {"label": "0", "text": '"'}]


def test_other_line_separators_of_unicode_are_characters(tmp_path):
    odd = "a\u2028b\x85c\x0bd\x1ce"
    assert cells(write(tmp_path, "x.csv", f"text,label\n{odd},1\n"))[0]["text"] == odd
    assert cells(write(tmp_path, "x.tsv", f"text\tlabel\n{odd}\t1\n"))[0]["text"] == odd


def test_a_stream_is_read_row_by_row():
    class Endless(io.RawIOBase):
        def readable(self):
            return True

        def readinto(self, buffer):
            buffer[:6] = b"a\n b\r\n"
            return 6

    found = tables.rows(Endless(), format="txt", place="standard input")
    assert [next(found) for _ in range(3)] == [(1, {"text": "a"}), (2, {"text": " b"}), (3, {"text": "a"})]


def test_words_that_mean_nothing_elsewhere_are_words(tmp_path):
    words = ["null", "NA", "None", "nan", "N/A"]
    path = write(tmp_path, "x.csv", "text,label\n" + "".join(f"{word},{word}\n" for word in words))
    table = tables.read(path, Columns())
    assert table.texts == table.labels == words


EMPTY = "text,label\ngood,1\n,1\n  ,0\nbad,\nbad,0\n"


def test_empty_cells_are_refused_with_their_lines(tmp_path):
    path = write(tmp_path, "x.csv", EMPTY)
    assert refusal(path).startswith(": an empty text or label in 3 rows: lines 3, 4, 5;")
    one = write(tmp_path, "y.jsonl", '{"text": "a", "label": 1}\n{"text": null, "label": 1}\n')
    assert refusal(one).startswith(": an empty text or label in 1 row: line 2;")
    many = write(tmp_path, "z.csv", "text,label\n" + ",1\n" * 12)
    assert "in 12 rows: lines 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 2 more;" in refusal(many)


def test_empty_cells_are_dropped_where_that_is_asked_for(tmp_path):
    table = tables.read(write(tmp_path, "x.csv", EMPTY), Columns(), empty="drop")
    assert (table.texts, table.labels, table.lines, table.dropped) == (["good", "bad"], ["1", "0"], [2, 6], [3, 4, 5])
    assert table.place(1) == f"{table.path}, line 6"


def test_an_empty_second_text_is_an_empty_cell(tmp_path):
    path = write(tmp_path, "x.tsv", "sentence1\tsentence2\tlabel\na\tb\t1\na\t\t0\n")
    assert "in 1 row: line 3;" in refusal(path)
    assert tables.read(path, Columns(), empty="drop").pairs == ["b"]


@pytest.mark.parametrize(
    "name, content, expected",
    [
        ("x.csv", 'text,label\nfine,1\n"open,1\nmore,0\n', ", line 3: a double quote is opened in this row"),
        ("x.csv", 'text,label\n\nfine,1\n"a"b,1\n', ", line 4: no CSV (at line 4): ',' expected after '\"'"),
        ("x.csv", 'text,label\n"a\nb",1\na,b,0\n', ", line 4: 3 cells, where line 1 names 2 columns"),
        ("x.csv", "text,label\na,1\nb\n", ", line 3: 1 cells, where line 1 names 2 columns"),
        ("x.csv", "text,label\na\rb,1\n", ", line 2: a carriage return inside a cell without quotes"),
        ("x.csv", 'text,label\n"' + "a\n" * 70000, ", line 2: a cell of more than 131,072 characters (up to line "),
        ("x.csv", "text,text,label\na,b,1\n", ", line 1: the column 'text' is there twice"),
        ("x.tsv", "text\tlabel\na\t1\nb\tc\t1\n", ", line 3: 3 cells, where line 1 names 2 columns"),
        ("x.jsonl", '{"text": "a", "label": 1}\n\n{"text": \n', ", line 3: no JSON: Expecting value"),
        ("x.jsonl", "[1]\n", ", line 1: [1] is no JSON object"),
        ("x.jsonl", '{"text": "a", "label": NaN}\n', ", line 1: no JSON: NaN is not JSON"),
        ("x.jsonl", "[" * 100000, ", line 1: no JSON: "),
        ("x.jsonl", '{"text": "\\ud800", "label": 1}\n', ", line 1: half a surrogate pair"),
        ("x.jsonl", '{"text": 5, "label": 1}\n', ", line 1: 'text' is 5; a string is needed"),
        ("x.jsonl", '{"text": ["a"], "label": 1}\n', ", line 1: 'text' is [\"a\"]; a string is needed"),
        ("x.jsonl", '{"text": "a", "label": [1]}\n', ", line 1: 'label' is [1]; a word or a number is needed"),
        ("x.csv", b"text,label\na,1\n" + b"caf\xe9,0\n", ", line 3: not UTF-8 (invalid continuation byte at"),
        ("x.csv", "text,label\na,1\n".encode("utf-16-le"), ", line 1: a NUL character"),
        ("x.csv", "text,label\na\0b,1\n", ", line 2: a NUL character"),
        ("x.csv", "text,label\na,1\n".encode("utf-16")[:-1], ", line 2: not UTF-16"),
        ("x.csv", "", ": no rows in it"),
        ("x.csv", "text,label\n", ": no rows in it"),
        ("x.jsonl", " \n\n", ": no rows in it"),
        ("x.txt", "a\nb\n", ": no label column: it has none of label, labels, but 'text'; name it with --label_col"),
        ("x.csv", "a,label\nx,1\n", ": no text column: it has none of text, sentence, review, content, but 'a', 'lab"),
        ("x.csv", "text;label\nx;1\n", "name it with --text_column; cells are separated by commas in .csv"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_with_its_line(tmp_path, name, content, expected):
    path = write(tmp_path, name, content)
    assert expected in refusal(path)
    if name != "x.jsonl":
        assert expected in refusal(write(tmp_path, f"{name}.gz", path.read_bytes()))


def test_a_surrogate_pair_is_a_character(tmp_path):
    assert cells(write(tmp_path, "x.jsonl", '{"text": "\\ud83d\\ude00"}\n')) == [{"text": "😀"}]


def test_damaged_compression_is_refused(tmp_path):
    path = tmp_path / "x.csv.gz"
    path.write_bytes(b"text,label\na,1\n")
    assert ", after line 0: its compressed data are damaged" in refusal(path)
    whole = gzip.compress(b"text,label\n" + b"a,1\n" * 9, mtime=0)
    path.write_bytes(whole[:-6])
    assert ": its compressed data are damaged" in refusal(path)


def test_a_name_without_a_format_is_refused(tmp_path):
    write(tmp_path, "x.parquet", "")
    with pytest.raises(UserError, match=r"x.parquet: its name should end in .csv, .tsv, "):
        tables.given("dataset", str(tmp_path / "x.parquet"))
    with pytest.raises(UserError, match="no such file"):
        tables.given("train_data", str(tmp_path / "x.csv"))
    assert "a folder" in refusal_of_folder(tmp_path)


def refusal_of_folder(folder) -> str:
    (folder / "y.csv").mkdir()
    with pytest.raises(UserError) as caught:
        tables.given("dataset", str(folder / "y.csv"))
    return str(caught.value)


@pytest.mark.parametrize(
    "names, wanted, expected",
    [
        (["id", "text", "label"], Columns(), Columns("text", None, "label")),
        (["review", "sentence", "labels"], Columns(), Columns("sentence", None, "labels")),
        (["text", "sentence1", "sentence2", "label"], Columns(), Columns("text", None, "label")),
        (["premise", "hypothesis", "label"], Columns(), Columns("premise", "hypothesis", "label")),
        (["question", "sentence", "label"], Columns(), Columns("question", "sentence", "label")),  # GLUE's QNLI
        (["sentence1", "sentence2", "label"], Columns("sentence1"), Columns("sentence1", None, "label")),
        (["a", "b", "c", "text"], Columns("a", "b", "c"), Columns("a", "b", "c")),
        (["text", "reply", "label"], Columns(pair="reply"), Columns("text", "reply", "label")),
    ],
)
def test_the_usual_columns_are_found(names, wanted, expected):
    assert tables.resolve(names, wanted, "x.csv") == expected


def test_a_named_column_that_is_missing_is_refused():
    with pytest.raises(UserError) as caught:
        tables.resolve(["text", "label"], Columns("body"), "x.csv")
    assert str(caught.value) == (
        "x.csv: no body column: it has no 'body', but 'text', 'label'; name it with --text_column"
    )


def test_labels_are_not_needed_to_predict():
    assert tables.resolve(["text"], Columns(label="label"), "x", labelled=False) == Columns("text", None, None)


@pytest.mark.parametrize(
    "names, expected",
    [
        (["train.csv", "test.csv", "notes.md", "extra.csv"], ("train.csv", "test.csv")),
        (["train.tsv.gz", "dev.tsv", "validation.jsonl"], ("train.tsv.gz", "validation.jsonl")),
        (["train.jsonl", "dev.jsonl"], ("train.jsonl", "dev.jsonl")),
        (["Train.csv"], ("Train.csv", None)),
    ],
)
def test_a_folder_s_files_are_told_by_their_names(tmp_path, names, expected):
    for name in names:
        write(tmp_path, name, "")
    assert tables.in_folder(tmp_path) == tuple(name and tmp_path / name for name in expected)


@pytest.mark.parametrize(
    "names, expected",
    [
        ([], "it holds nothing"),
        (["data.csv", "b.txt"], "no train.csv, train.tsv or train.jsonl in it; it holds b.txt, data.csv;"),
        (["train.csv", "train.jsonl"], "train.csv and train.jsonl are both there"),
    ],
)
def test_a_folder_without_one_training_file_is_refused(tmp_path, names, expected):
    for name in names:
        write(tmp_path, name, "")
    with pytest.raises(UserError, match=expected):
        tables.in_folder(tmp_path)
