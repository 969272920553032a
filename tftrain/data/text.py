"""Texts as examples: token numbers from a WordPiece tokenizer."""

import collections
import dataclasses
import pathlib
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tokenizers
import transformers

from tftrain.data import sets
from tftrain.errors import UserError

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# Characters that a learnt vocabulary holds at most, the most frequent ones; others become [UNK].
ALPHABET = 1000


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TextExamples:
    """Token numbers of texts of different lengths, one after the other in memory.

    Attributes:
      tokens: int32 [all tokens].
      starts: int64 [count], where each text's tokens start.
      lengths: int64 [count], how many each has, [CLS] and [SEP] included.
      labels: int32 [count].
      padding: the number of the padding token.
      augment: takes the inputs of a batch and `draw`, returns inputs; for training.
    """

    tokens: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    labels: np.ndarray
    padding: int
    augment: Callable | None = None

    def inputs(self, rows: tf.Tensor, length: tf.Tensor, draw: Callable | None = None) -> dict[str, tf.Tensor]:
        """`input_ids` and `attention_mask`, int32 [batch, length]; see `batching.Examples`."""
        columns = tf.range(tf.cast(length, tf.int64), dtype=tf.int64)[tf.newaxis, :]
        inside = columns < tf.gather(tf.constant(self.lengths), rows)[:, tf.newaxis]
        places = tf.where(inside, tf.gather(tf.constant(self.starts), rows)[:, tf.newaxis] + columns, 0)
        ids = tf.where(inside, tf.gather(tf.constant(self.tokens), places), self.padding)
        found = {"input_ids": ids, "attention_mask": tf.cast(inside, tf.int32)}
        return found if draw is None or self.augment is None else self.augment(found, draw)


def word_dropout(rate: float, tokenizer) -> Callable:
    """An `augment` of `TextExamples` that replaces each token by [UNK] with probability `rate` (Iyyer et al., 2015).

    [CLS], [SEP] and padding stay as they are.
    """
    special = tf.constant([tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id], tf.int32)

    def augment(inputs: dict[str, tf.Tensor], draw: Callable) -> dict[str, tf.Tensor]:
        ids = inputs["input_ids"]
        below = draw(tf.shape(ids)[1]) < tf.constant(min(round(rate * 2**32), 2**32 - 1), tf.uint32)
        kept = tf.reduce_any(ids[:, :, tf.newaxis] == special, axis=-1)
        return inputs | {"input_ids": tf.where(below & ~kept, tokenizer.unk_token_id, ids)}

    return augment


def read(folder: pathlib.Path, split: str) -> tuple[list[str], list[int], list[str]]:
    """Read a split of a TFDS-format text set: texts, labels, label names.

    Raises:
      UserError: as `sets.read`, or a row's text is no UTF-8.
    """
    table, label_names = sets.read(folder, split, ("text", "label"))
    texts = []
    for row, text in enumerate(table["text"]):
        if not isinstance(text, bytes):
            raise UserError(f"--dataset={folder}: its column 'text' holds a {type(text).__name__}; a string is needed")
        try:
            texts.append(text.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise UserError(f"--dataset={folder}: split {split!r}, row {row}: no UTF-8 text: {error}") from None
    return texts, table["label"], label_names


def train_tokenizer(texts: list[str], vocabulary_size: int) -> transformers.BertTokenizerFast:
    """A lower-casing WordPiece tokenizer with a vocabulary learnt from the texts, the same each time.

    `tokenizers` numbers the characters inside words in the order of a randomly seeded hash map, and breaks ties between
    merges by these numbers, so its vocabularies differ from run to run. Here they get their numbers beforehand.
    """
    trained = tokenizers.BertWordPieceTokenizer(lowercase=True)
    words = collections.Counter(
        word
        for text in texts
        for word, _ in trained.pre_tokenizer.pre_tokenize_str(trained.normalizer.normalize_str(text))
    )
    counts = collections.Counter()
    for word, count in words.items():
        for character in word:
            counts[character] += count
    # Each character takes up to two numbers, one at the start of words and one inside them.
    most = min(ALPHABET, (vocabulary_size - len(SPECIAL_TOKENS)) // 2)
    alphabet = sorted(counts, key=lambda character: (-counts[character], character))[:most]
    inside = sorted({character for word in words for character in word[1:]} & set(alphabet))
    trained.train_from_iterator(
        texts,
        vocab_size=vocabulary_size,
        min_frequency=2,
        limit_alphabet=len(alphabet),
        initial_alphabet=alphabet,
        special_tokens=[*SPECIAL_TOKENS, *(f"##{character}" for character in inside)],
        show_progress=False,
    )
    # From the vocabulary alone: without the characters as special tokens, and with [CLS] and [SEP] around each text,
    # which `tokenizers` adds only to a vocabulary that it is given.
    tokenizer = tokenizers.BertWordPieceTokenizer(trained.get_vocab(), lowercase=True)
    return transformers.BertTokenizerFast(tokenizer_object=tokenizer._tokenizer, do_lower_case=True)


def load_tokenizer(folder: pathlib.Path) -> transformers.PreTrainedTokenizerFast:
    """The tokenizer of a model folder.

    Raises:
      UserError: its files cannot be read.
    """
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        tokenizer("a \N{SNOWMAN}")  # a vocabulary without [UNK] fails here
    except Exception as error:  # transformers raises whatever its parsers raise
        raise UserError(f"--model={folder}: its tokenizer cannot be loaded: {error}") from None
    if not tokenizer.is_fast or tokenizer.pad_token_id is None:
        lack = "has no padding token" if tokenizer.is_fast else "has no fast form"
        raise UserError(f"--model={folder}: its tokenizer ({type(tokenizer).__name__}) {lack}; a BERT's is needed")
    return tokenizer


def encode(tokenizer, texts: list[str], labels: list[int], max_length: int) -> tuple[TextExamples, int]:
    """Tokenize texts, cut to `max_length` tokens.

    Returns:
      the examples, and how many texts were cut.
    """
    encodings = tokenizer(texts, add_special_tokens=True, truncation=True, max_length=max_length, verbose=False)
    rows = encodings["input_ids"]
    cut = sum(bool(encoding.overflowing) for encoding in encodings.encodings)
    lengths = np.array([len(row) for row in rows], np.int64)
    return TextExamples(
        tokens=np.concatenate(rows).astype(np.int32),
        starts=np.concatenate([[0], np.cumsum(lengths)[:-1]]),
        lengths=lengths,
        labels=np.array(labels, np.int32),
        padding=tokenizer.pad_token_id,
    ), cut
