import numpy as np
import pytest

from tftrain.data import labels
from tftrain.errors import UserError


def place(row: int) -> str:
    return f"x.csv, line {row + 2}"


@pytest.mark.parametrize(
    "values, expected",
    [
        ([3, 1, 2], ["1", "2", "3"]),
        (["10", "9", "-1"], ["-1", "9", "10"]),
        (["1.0", "2", 1, 2.0], ["1", "2"]),
        (["+1", "01", "-0", 0], ["0", "1"]),
        (["bad", " good ", "good"], ["bad", "good"]),
        (["b", "B", "é", "a"], ["B", "a", "b", "é"]),
        (["10", "9", "none"], ["10", "9", "none"]),
        ([True, False], ["false", "true"]),
        (["好", "坏"], ["坏", "好"]),
        (["NA", "null", "nan"], ["NA", "nan", "null"]),
        (["1e3", "1-2", "٣"], ["1-2", "1e3", "٣"]),
        ([10**20, -5], ["-5", str(10**20)]),
    ],
)
def test_classes_are_named_and_ordered_by_the_rule(values, expected):
    assert labels.classes(values, place) == expected
    assert labels.classes(values[::-1], place) == expected


@pytest.mark.parametrize(
    "value, expected",
    [
        (0.5, "line 4: label 0.5 is not a whole number"),
        ("0.5", "line 4: label 0.5 is not a whole number"),
        ("-.25", "line 4: label -.25 is not a whole number"),
        (float("inf"), "line 4: label inf is not a whole number"),
        (None, "line 4: label None is neither a word nor a number"),
    ],
)
def test_what_can_be_no_class_is_refused_with_its_line(value, expected):
    with pytest.raises(UserError, match=expected):
        labels.classes([1, 0, value], place)
    with pytest.raises(UserError, match=expected):
        labels.encode([1, 0, value], ["0", "1"], place)


@pytest.mark.parametrize("values", [["a", "a"], [1, "1.0", 1.0]])
def test_one_class_is_refused(values):
    with pytest.raises(UserError, match="two classes are needed"):
        labels.classes(values, place)


def test_encoding_uses_the_training_classes():
    found = labels.encode(["2", 1, 1.0, "2.0", -1], ["-1", "1", "2"], place)
    assert found.dtype == np.int32
    assert found.tolist() == [2, 1, 1, 2, 0]
    assert labels.encode(["good ", "bad"], ["bad", "good"], place).tolist() == [1, 0]


def test_names_that_a_data_set_gives_stay_as_they_are():
    assert labels.encode(["01", "02", 2], ["01", "02"], place).tolist() == [0, 1, 1]


@pytest.mark.parametrize("value, shown", [(4, "4"), ("Good", "Good"), (True, "true"), (-1, "-1")])
def test_a_label_that_training_has_not_seen_is_refused_with_its_line(value, shown):
    with pytest.raises(UserError) as caught:
        labels.encode(["good", "bad", value], ["bad", "good"], place)
    assert str(caught.value) == f"x.csv, line 4: label {shown!r} is not among the training labels: bad, good"


def test_the_mapping_is_short():
    assert labels.mapping(["bad", "good"]) == "0 = bad, 1 = good"
    assert labels.mapping([f"c{i}" for i in range(20)]).endswith("11 = c11 and 8 more")


def test_a_hold_out_has_the_share_of_each_class():
    values = np.array([0] * 100 + [1] * 50 + [2] * 3 + [3])
    train, test = labels.hold_out(values, 0.1, seed=0)
    assert sorted([*train, *test]) == list(range(len(values)))
    assert np.bincount(values[test], minlength=4).tolist() == [10, 5, 1, 0]
    assert np.bincount(values[train]).tolist() == [90, 45, 2, 1]
    assert np.all(np.diff(train) > 0) and np.all(np.diff(test) > 0)


def test_a_hold_out_is_drawn_with_the_seed():
    values = np.arange(200) % 2
    first, again, other = (labels.hold_out(values, 0.2, seed)[1].tolist() for seed in (1, 1, 2))
    assert first == again != other
    assert all(len(labels.hold_out(values, share, 0)[0]) > 0 for share in (0.001, 0.999))


def test_a_hold_out_of_single_rows_is_refused():
    with pytest.raises(UserError, match="3 rows of as many classes"):
        labels.hold_out(np.arange(3), 0.1, 0)
