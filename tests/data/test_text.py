import numpy as np
import pytest
import tensorflow as tf

from tftrain.data import text
from tftrain.errors import UserError

CORPUS = ["the cat sat on the mat", "the dog sat on the log", "a cat and a dog", "the log and the mat"] * 3


@pytest.fixture(scope="module")
def tokenizer():
    return text.train_tokenizer(CORPUS, 100)


def test_the_tokenizer_lower_cases_and_knows_the_words(tokenizer):
    assert tokenizer.tokenize("The CAT sat") == ["the", "cat", "sat"]
    assert tokenizer.pad_token_id is not None
    assert len(tokenizer) <= 100


def test_encode_keeps_each_text_apart(tokenizer):
    words = ["cat", "the dog sat", "a log"]
    examples, cut = text.encode(tokenizer, words, [0, 1, 2], 16)
    assert cut == 0
    assert examples.lengths.tolist() == [3, 5, 4]  # [CLS] and [SEP] included
    assert examples.labels.tolist() == [0, 1, 2]
    for row, sentence in enumerate(words):
        tokens = examples.tokens[examples.starts[row] :][: examples.lengths[row]]
        assert tokenizer.decode(tokens) == f"[CLS] {sentence} [SEP]"


def test_long_texts_are_cut_and_counted(tokenizer):
    examples, cut = text.encode(tokenizer, ["cat " * 2000, "cat", "the dog sat on the mat", "a " * 6], [0] * 4, 8)
    assert cut == 1
    assert examples.lengths.tolist() == [8, 3, 8, 8]
    assert tokenizer.decode(examples.tokens[:8]) == "[CLS] " + "cat " * 6 + "[SEP]"


def test_inputs_are_padded_to_the_length_and_masked(tokenizer):
    examples, _ = text.encode(tokenizer, ["cat", "the dog sat"], [0, 1], 16)
    inputs = examples.inputs(tf.constant([1, 0, 1], tf.int64), tf.constant(8))
    expected = tokenizer(["the dog sat", "cat", "the dog sat"], padding="max_length", max_length=8, return_tensors="np")
    np.testing.assert_array_equal(inputs["input_ids"], expected["input_ids"])
    np.testing.assert_array_equal(inputs["attention_mask"], expected["attention_mask"])
    assert inputs["input_ids"].dtype == inputs["attention_mask"].dtype == tf.int32


def test_a_tokenizer_is_loaded_from_a_folder_with_a_vocabulary_alone(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat", "dog", "##s"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    loaded = text.load_tokenizer(tmp_path)
    assert loaded("Cats dog bird")["input_ids"] == [2, 5, 7, 6, 1, 3]


def test_a_saved_tokenizer_is_loaded_as_it_was(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    assert text.load_tokenizer(tmp_path)(CORPUS)["input_ids"] == tokenizer(CORPUS)["input_ids"]


def test_a_broken_tokenizer_is_refused_in_one_line(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(UserError, match="its tokenizer cannot be loaded") as caught:
        text.load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)
