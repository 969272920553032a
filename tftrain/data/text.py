"""Texts as examples: token numbers from a WordPiece tokenizer."""

import collections
import dataclasses
import functools
import pathlib
import tempfile
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tokenizers
import transformers

from tftrain import console
from tftrain.data import corpus
from tftrain.errors import UserError

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# Texts that are tokenized at once; more take more memory and are no faster.
TOKENIZED_AT_ONCE = 1000
# Bytes of tokens that --cache=auto keeps in memory; more go to a file.
IN_MEMORY = 2**30
# A share of unknown tokens above this is warned about. A BERT with its own language's texts has below 0.01.
UNKNOWN_SHARE = 0.05


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TextExamples:
    """Token numbers of texts of different lengths, one after the other.

    Attributes:
      tokens: uint16 or int32 [all tokens], in memory or mapped from a file.
      starts: int64 [count], where each text's tokens start.
      lengths: int64 [count], how many each has, [CLS] and [SEP] included.
      labels: int32 [count].
      padding: the number of the padding token.
      augment: takes the inputs of a batch and `draw`, returns inputs; for training.
      first_lengths: int64 [count], how many of a pair's tokens are the first text's, [CLS] and [SEP] included; None
        where there are no pairs.
    """

    tokens: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    labels: np.ndarray
    padding: int
    augment: Callable | None = None
    first_lengths: np.ndarray | None = None

    def inputs(self, rows: tf.Tensor, length: tf.Tensor, draw: Callable | None = None) -> dict[str, tf.Tensor]:
        """`input_ids`, `attention_mask` and, of pairs, `token_type_ids`, int32 [batch, length].

        See `batching.Examples`.
        """
        columns = tf.range(tf.cast(length, tf.int64), dtype=tf.int64)[tf.newaxis, :]
        inside = columns < tf.gather(tf.constant(self.lengths), rows)[:, tf.newaxis]
        places = tf.where(inside, tf.gather(tf.constant(self.starts), rows)[:, tf.newaxis] + columns, 0)
        ids = tf.where(inside, self._gather(places), self.padding)
        found = {"input_ids": ids, "attention_mask": tf.cast(inside, tf.int32)}
        if self.first_lengths is not None:
            second = columns >= tf.gather(tf.constant(self.first_lengths), rows)[:, tf.newaxis]
            found["token_type_ids"] = tf.cast(inside & second, tf.int32)
        return found if draw is None or self.augment is None else self.augment(found, draw)

    def _gather(self, places: tf.Tensor) -> tf.Tensor:
        """The tokens at these places, int32."""
        if isinstance(self.tokens, np.memmap):
            found = tf.numpy_function(lambda places: self.tokens[places].astype(np.int32), [places], tf.int32)
            return tf.ensure_shape(found, places.shape)
        return tf.cast(tf.gather(self._in_memory, places), tf.int32)

    @functools.cached_property
    def _in_memory(self) -> tf.Tensor:
        # Made once, outside of the graph that reads it: a graph holds no more than 2 GB of constants.
        with tf.init_scope(), tf.device("CPU:0"):
            return tf.constant(self.tokens)


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
    most = (vocabulary_size - len(SPECIAL_TOKENS)) // 2
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


def encode(
    tokenizer, part: corpus.Part, max_length: int, cache: str = "auto", title: str = "tokenizing"
) -> tuple[TextExamples, int]:
    """Tokenize texts, cut to `max_length` tokens; of a pair, the longer text is cut.

    Args:
      cache: "memory" or "disk", where the tokens are kept; "auto": in memory up to IN_MEMORY bytes.
      title: of the progress bar.

    Returns:
      the examples, and how many texts were cut.
    """
    kind = np.uint16 if max(tokenizer.get_vocab().values()) < 2**16 else np.int32
    count = len(part.texts)
    lengths, first_lengths = np.empty(count, np.int64), np.empty(count, np.int64)
    cut = 0
    progress = console.Progress(title, count, "texts")
    # Unlinked at once where it reaches the disk, so that nothing is left behind however the process ends.
    size = {"memory": 0, "disk": 1}.get(cache, IN_MEMORY)  # 0: never on disk
    with tempfile.SpooledTemporaryFile(size, prefix="tftrain-tokens-") as file:
        for begin in range(0, count, TOKENIZED_AT_ONCE):
            rows = slice(begin, begin + TOKENIZED_AT_ONCE)
            encodings = tokenizer(
                part.texts[rows],
                part.pairs and part.pairs[rows],
                add_special_tokens=True,
                truncation="longest_first",
                max_length=max_length,
                return_attention_mask=False,
                return_token_type_ids=True,
                verbose=False,
            )
            cut += sum(bool(encoding.overflowing) for encoding in encodings.encodings)
            lengths[rows] = [len(ids) for ids in encodings["input_ids"]]
            first_lengths[rows] = [types.count(0) for types in encodings["token_type_ids"]]
            try:
                file.write(np.concatenate(encodings["input_ids"]).astype(kind).tobytes())
            except OSError as error:
                raise UserError(
                    f"--cache={cache}: the tokens cannot be written to {tempfile.gettempdir()}: {error.strerror}; "
                    "set TMPDIR to a folder with room, or pass --cache=memory"
                ) from None
            progress.update(min(begin + TOKENIZED_AT_ONCE, count))
        progress.close()
        on_disk = 0 < size < file.tell()
        file.seek(0)
        tokens = np.memmap(file, kind, "r") if on_disk else np.frombuffer(file.read(), kind)
    return TextExamples(
        tokens=tokens,
        starts=np.concatenate([[0], np.cumsum(lengths)[:-1]]),
        lengths=lengths,
        labels=part.labels,
        padding=tokenizer.pad_token_id,
        first_lengths=first_lengths if part.pairs else None,
    ), cut


def unknown_note(tokenizer, examples: TextExamples, part: corpus.Part) -> str | None:
    """What to say of the unknown tokens among the examples, with a likely reason; None where they are few.

    Args:
      part: the examples' texts, of which the first are looked at for the reason.
    """
    words = len(examples.tokens) - (2 if examples.first_lengths is None else 3) * len(examples.lengths)
    share = np.count_nonzero(examples.tokens == tokenizer.unk_token_id) / max(words, 1)
    if share <= UNKNOWN_SHARE:
        return None
    texts = part.texts[:TOKENIZED_AT_ONCE]
    unknown = collections.Counter()
    for text, encoding in zip(texts, tokenizer(texts, add_special_tokens=False, verbose=False).encodings):
        for token, (begin, end) in zip(encoding.ids, encoding.offsets):
            if token == tokenizer.unk_token_id:
                unknown[text[begin:end]] += 1
    shown = ", ".join(repr(word[:20]) for word, _ in unknown.most_common(5))
    return f"{share:.0%} of the tokens are unknown to the vocabulary, such as {shown}: {_reason(tokenizer, unknown)}"


def _reason(tokenizer, unknown: collections.Counter) -> str:
    """Why these pieces of text are likely to be unknown."""

    def share(condition: Callable[[str], bool]) -> float:
        return sum(count for word, count in unknown.items() if condition(word)) / max(unknown.total(), 1)

    def known(word: str) -> bool:
        return tokenizer.unk_token_id not in tokenizer(word, add_special_tokens=False, verbose=False)["input_ids"]

    if share(lambda word: word != word.lower() and known(word.lower())) > 0.5:
        return 'the vocabulary is lower-case: set "do_lower_case": true in the model\'s tokenizer_config.json'
    if share(lambda word: not word.isascii()) > 0.5:
        return "the model was made for another language or script; take one that was made for it"
    return "the texts and the vocabulary do not belong together"
