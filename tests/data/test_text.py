import dataclasses
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests import helpers
from tftrain.data import text
from tftrain.data.batching import Batches
from tftrain.data.corpus import Part
from tftrain.errors import UserError

CORPUS = ["the cat sat on the mat", "the dog sat on the log", "a cat and a dog", "the log and the mat"] * 3


@pytest.fixture(scope="module")
def tokenizer():
    return text.train_tokenizer(CORPUS, 100)


def encode(tokenizer, texts, max_length=16, pairs=None, labels=None, **options):
    labels = np.zeros(len(texts), np.int32) if labels is None else np.array(labels, np.int32)
    return text.encode(tokenizer, Part(texts, pairs, labels), max_length, **options)


def row(examples, number: int) -> list[int]:
    return examples.tokens[examples.starts[number] :][: examples.lengths[number]].tolist()


def test_the_tokenizer_lower_cases_and_knows_the_words(tokenizer):
    assert tokenizer.tokenize("The CAT sat") == ["the", "cat", "sat"]
    assert tokenizer.pad_token_id is not None
    assert len(tokenizer) <= 100


def learn(texts: list[str], size: int, hash_seed: str) -> str:
    """A vocabulary learnt in a process of its own, as text."""
    code = (
        "import sys, json, tftrain\n"
        "from tftrain.data import text\n"
        "tokenizer = text.train_tokenizer(json.load(sys.stdin), int(sys.argv[1]))\n"
        "print(sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]))\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, str(size)],
        input=json.dumps(texts),
        cwd=helpers.ROOT,
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_a_learnt_vocabulary_is_the_same_each_time():
    generator = np.random.default_rng(0)
    letters = list("abcdefghijklmnopqrstuvwxyzäöü")
    corpus = [" ".join("".join(generator.choice(letters, 5)) for _ in range(6)) for _ in range(200)]
    vocabularies = [text.train_tokenizer(corpus, 300).get_vocab() for _ in range(5)]
    assert all(vocabulary == vocabularies[0] for vocabulary in vocabularies[1:])
    assert learn(corpus, 300, "1") == learn(corpus, 300, "2")


def test_a_learnt_vocabulary_has_the_size_and_the_special_tokens_first(tokenizer):
    vocabulary = tokenizer.get_vocab()
    assert sorted(vocabulary.values()) == list(range(len(vocabulary)))
    assert [vocabulary[token] for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")] == [0, 1, 2, 3, 4]
    assert tokenizer.all_special_tokens == ["[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"]
    generator = np.random.default_rng(0)
    corpus = [" ".join("".join(generator.choice(list("abcdef"), 5)) for _ in range(6)) for _ in range(200)]
    assert len(text.train_tokenizer(corpus, 100)) == 100


def test_an_alphabet_larger_than_the_vocabulary_is_cut():
    characters = [chr(0x4E00 + i) for i in range(300)]
    corpus = ["".join(characters), *(character * 3 for character in characters[:20])]
    tokenizer = text.train_tokenizer(corpus, 100)
    assert len(tokenizer) <= 100
    assert tokenizer.tokenize(characters[0]) == [characters[0]]
    assert tokenizer.tokenize(characters[-1]) == ["[UNK]"]


def test_a_learnt_vocabulary_knows_thousands_of_characters():
    characters = [chr(0x4E00 + i) for i in range(3000)]
    tokenizer = text.train_tokenizer(["".join(characters[i : i + 50]) for i in range(0, 3000, 50)], 8000)
    assert tokenizer.tokenize("".join(characters[1500:1503])) == characters[1500:1503]
    assert tokenizer.unk_token not in tokenizer.tokenize("".join(characters))


def test_encode_keeps_each_text_apart(tokenizer):
    words = ["cat", "the dog sat", "a log"]
    examples, cut = encode(tokenizer, words, labels=[0, 1, 2])
    assert cut == 0
    assert examples.lengths.tolist() == [3, 5, 4]  # [CLS] and [SEP] included
    assert examples.labels.tolist() == [0, 1, 2]
    for number, sentence in enumerate(words):
        assert tokenizer.decode(row(examples, number)) == f"[CLS] {sentence} [SEP]"


def test_long_texts_are_cut_and_counted(tokenizer):
    examples, cut = encode(tokenizer, ["cat " * 2000, "cat", "the dog sat on the mat", "a " * 6], 8)
    assert cut == 1
    assert examples.lengths.tolist() == [8, 3, 8, 8]
    assert tokenizer.decode(examples.tokens[:8]) == "[CLS] " + "cat " * 6 + "[SEP]"


def test_inputs_are_padded_to_the_length_and_masked(tokenizer):
    examples, _ = encode(tokenizer, ["cat", "the dog sat"])
    inputs = examples.inputs(tf.constant([1, 0, 1], tf.int64), tf.constant(8))
    expected = tokenizer(["the dog sat", "cat", "the dog sat"], padding="max_length", max_length=8, return_tensors="np")
    np.testing.assert_array_equal(inputs["input_ids"], expected["input_ids"])
    np.testing.assert_array_equal(inputs["attention_mask"], expected["attention_mask"])
    assert inputs["input_ids"].dtype == inputs["attention_mask"].dtype == tf.int32


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_word_dropout_replaces_its_share_of_the_words_alone(tokenizer, rate):
    words = ["cat dog"] * 500 + ["the mat sat on the log"] * 500
    examples, _ = encode(tokenizer, words)
    augmented = dataclasses.replace(examples, augment=text.word_dropout(rate, tokenizer))
    batches = Batches(augmented, 1000, seed=3, batch_lengths=(8,))
    ((found,),) = helpers.elements(batches, 1, 1)
    before = examples.inputs(tf.constant(found["rows"]), tf.constant(8))["input_ids"].numpy()
    after = found["inputs"]["input_ids"]
    special = np.isin(before, [tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id])
    np.testing.assert_array_equal(after[special], before[special])
    replaced = (after != before)[~special]
    assert np.all(after[~special][replaced] == tokenizer.unk_token_id)
    # Of 4,000 words, five standard deviations.
    assert abs(replaced.mean() - rate) < 5 * np.sqrt(rate * (1 - rate) / replaced.size)


@pytest.mark.parametrize("replicas", [2, 3])
def test_word_dropout_does_not_depend_on_the_replicas(tokenizer, replicas):
    examples, _ = encode(tokenizer, ["the mat sat on the log", "a cat"] * 10)
    examples = dataclasses.replace(examples, augment=text.word_dropout(0.5, tokenizer))
    batches = Batches(examples, 6, seed=3, batch_lengths=(5, 16))

    def seen(replicas):
        steps = helpers.elements(batches, replicas, 8)
        return [np.concatenate([part["inputs"]["input_ids"][part["weights"] == 1] for part in step]) for step in steps]

    for found, expected in zip(seen(replicas), seen(1)):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("rate, expected", [(0.5, [1, 1, 8]), (1 - 1e-12, [1, 1, 1])])
def test_word_dropout_takes_a_rate_next_to_one(tokenizer, rate, expected):
    words = tf.constant([[0, 0, 2**31 - 1, 2**32 - 2]], tf.uint32)
    ids = tf.constant([[tokenizer.cls_token_id, 7, 9, 8]])
    found = text.word_dropout(rate, tokenizer)({"input_ids": ids}, lambda count: words)["input_ids"].numpy()
    assert found[0].tolist() == [tokenizer.cls_token_id, *expected]


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


def test_a_vocabulary_without_the_unknown_token_is_refused(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[CLS]\n[SEP]\ncat\n")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(UserError, match=r"its tokenizer cannot be loaded: .*\[UNK\]"):
        text.load_tokenizer(tmp_path)


def test_pairs_have_types_and_the_longer_is_cut(tokenizer):
    firsts, seconds = ["cat", "the dog sat on the mat", "a log"], ["the mat", "a cat", "the dog " * 5]
    examples, cut = encode(tokenizer, firsts, 8, seconds)
    assert cut == 2
    assert [tokenizer.decode(row(examples, number)) for number in range(3)] == [
        "[CLS] cat [SEP] the mat [SEP]",
        "[CLS] the dog sat [SEP] a cat [SEP]",
        "[CLS] a log [SEP] the dog the [SEP]",
    ]
    inputs = examples.inputs(tf.constant([0, 2], tf.int64), tf.constant(9))
    assert inputs["token_type_ids"].numpy().tolist() == [[0, 0, 0, 1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 1, 1, 1, 1, 0]]
    assert inputs["attention_mask"].numpy().tolist() == [[1] * 6 + [0] * 3, [1] * 8 + [0]]
    assert "token_type_ids" not in encode(tokenizer, firsts)[0].inputs(tf.constant([0], tf.int64), tf.constant(8))


@pytest.mark.parametrize("cache, mapped", [("auto", False), ("memory", False), ("disk", True)])
def test_tokens_on_disk_are_those_in_memory(tokenizer, cache, mapped, monkeypatch):
    monkeypatch.setattr(text, "TOKENIZED_AT_ONCE", 3)
    examples, _ = encode(tokenizer, CORPUS, cache=cache)
    assert isinstance(examples.tokens, np.memmap) == mapped
    assert examples.tokens.dtype == np.uint16
    assert [row(examples, number) for number in range(len(CORPUS))] == tokenizer(CORPUS)["input_ids"]
    ((found,),) = helpers.elements(Batches(examples, 5, seed=1, batch_lengths=(8,)), 1, 1)
    expected = tokenizer([CORPUS[number] for number in found["rows"]], padding="max_length", max_length=8)
    assert found["inputs"]["input_ids"].tolist() == expected["input_ids"]


def test_many_tokens_go_to_disk(tokenizer, monkeypatch):
    monkeypatch.setattr(text, "IN_MEMORY", 100)
    assert isinstance(encode(tokenizer, CORPUS)[0].tokens, np.memmap)
    assert not isinstance(encode(tokenizer, CORPUS[:2])[0].tokens, np.memmap)


def test_a_large_vocabulary_s_numbers_fit(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(70000))]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    examples, _ = encode(text.load_tokenizer(tmp_path), ["w69999"])
    assert examples.tokens.tolist() == [2, 70004, 3]


def tokenizer_of(folder, words: list[str], **settings):
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]) + "\n")
    (folder / "config.json").write_text('{"model_type": "bert"}')
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", **settings}))
    return text.load_tokenizer(folder)


@pytest.mark.parametrize(
    "words, settings, texts, expected",
    [
        (["cat", "sat"], {}, ["cat sat"] * 19 + ["cat dog"], None),
        (
            ["cat", "sat"],
            {},
            ["cat dog", "dog sat"],
            "50% of the tokens are unknown to the vocabulary, such as 'dog': ",
        ),
        (["cat", "sat"], {}, ["很好", "cat"], "67% of the tokens are unknown .* for another language or script"),
        (["cat", "sat"], {"do_lower_case": False}, ["Cat SAT", "cat"], '67% .* set "do_lower_case": true'),
        (["cat", "sat"], {}, ["dog"], "100% .*: the texts and the vocabulary do not belong together"),
    ],
)
def test_many_unknown_tokens_are_said_with_a_reason(tmp_path, words, settings, texts, expected):
    tokenizer = tokenizer_of(tmp_path / "model", words, **settings)
    examples, _ = encode(tokenizer, texts)
    found = text.unknown_note(tokenizer, examples, Part(texts, None, np.zeros(len(texts), np.int32)))
    assert found is None if expected is None else re.match(expected, found)
