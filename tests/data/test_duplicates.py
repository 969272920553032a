import numpy as np
import pytest

from tftrain.data import duplicates


@pytest.mark.parametrize(
    "text, other",
    [
        ("\uff21\uff22\uff23，\uff11\uff12\uff13。", "abc123"),
        ("很 好！！", "很好"),
        ("Straße", "STRASSE"),
        ("don't", "Dont"),
        ("①", "1"),
        ("！？…", ""),
    ],
)
def test_width_case_punctuation_and_blanks_do_not_count(text, other):
    assert duplicates.key(text) == duplicates.key(other)


def test_words_and_digits_count():
    assert len({duplicates.key(text) for text in ("很好", "不好", "a1", "a2", "é", "e")}) == 6


def jaccard(a: str, b: str) -> float:
    one, two = ({text[i : i + 3] for i in range(max(1, len(text) - 2))} for text in (a, b))
    return len(one & two) / len(one | two)


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.8, 1.0])
def test_all_near_pairs_are_found_and_no_others(threshold):
    generator = np.random.default_rng(0)
    texts = ["".join(generator.choice(list("ab"), generator.integers(1, 14))) for _ in range(150)]
    expected = [(i, j) for i in range(150) for j in range(i + 1, 150) if jaccard(texts[i], texts[j]) >= threshold]
    assert duplicates.near(texts, threshold) == expected
    assert len(expected) > 10


def test_groups_are_what_pairs_connect():
    assert duplicates.groups(6, [(0, 3), (4, 5), (1, 3)]) == [[0, 1, 3], [2], [4, 5]]
