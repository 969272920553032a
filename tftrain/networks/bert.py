"""TFBertForSequenceClassification: from a configuration, or with the weights of a pretrained folder."""

import functools
import pathlib

import safetensors.numpy
import tensorflow as tf
import tf_keras as keras
import transformers
from transformers.activations_tf import ACT2FN
from transformers.modeling_tf_pytorch_utils import load_pytorch_state_dict_in_tf2_model
from transformers.modeling_tf_utils import get_initializer
from transformers.models.bert import modeling_tf_bert

from tftrain.data import model_folder
from tftrain.errors import UserError

_SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
)

transformers.logging.set_verbosity_error()
# An assertion in each step, which XLA drops with a warning at each compilation; `check_vocabulary` does it once.
modeling_tf_bert.check_embeddings_within_bounds = lambda tensor, embed_dim, tensor_name="input_ids": None


@functools.partial(tf.function, jit_compile=True)
def gelu(x: tf.Tensor) -> tf.Tensor:
    """GELU in its exact form (Hendrycks and Gimpel, 2016), computed in float32 and returned in the input's type.

    Compiled by itself, since TensorFlow's own kernels make five passes over the tensor forward and more backward: on
    a CPU in bfloat16 they take nine times as long as the matrix product before it.
    """
    y = tf.cast(x, tf.float32)
    return tf.cast(0.5 * y * (1.0 + tf.math.erf(y * 2**-0.5)), x.dtype)


def check_vocabulary(config: transformers.BertConfig, tokenizer) -> None:
    """Refuse a tokenizer with token numbers that the network has no embedding for."""
    tokens = max(tokenizer.get_vocab().values()) + 1
    if tokens > config.vocab_size:
        raise UserError(
            f"the tokenizer has {tokens} tokens and the model embeddings for {config.vocab_size}: "
            "they do not belong together"
        )


def build(config: transformers.BertConfig) -> transformers.TFBertForSequenceClassification:
    """A network with new weights, under the precision policy in force; its head computes in float32.

    Its inputs are a dictionary with `input_ids` and `attention_mask`, int32 [batch, length].
    """
    network = transformers.TFBertForSequenceClassification(config)
    network.classifier = keras.layers.Dense(
        config.num_labels,
        kernel_initializer=get_initializer(config.initializer_range),
        name="classifier",
        dtype="float32",
    )
    if config.hidden_act == "gelu":
        for layer in network.bert.encoder.layer:
            layer.intermediate.intermediate_act_fn = gelu
    network.build_in_name_scope()
    return network


def small_config(label_names: list[str], **sizes) -> transformers.BertConfig:
    """A configuration for a network from scratch; `sizes` are BertConfig's."""
    return transformers.BertConfig(**_labels(label_names), **sizes)


def read_config(folder: pathlib.Path, label_names: list[str]) -> transformers.BertConfig:
    """The configuration of a model folder, for other labels.

    Raises:
      UserError: it is not a BERT's, or a value in it is none that a BERT can have.
    """
    values = model_folder.read_config(folder, "bert")
    config = transformers.BertConfig.from_dict(values | _labels(label_names))

    def check(name: str, condition: bool, expected: str) -> None:
        if not condition:
            raise UserError(
                f"--model={folder}: its config.json says {name} {getattr(config, name)!r}; it should be {expected}"
            )

    for name in _SIZES:
        value = getattr(config, name)
        check(name, isinstance(value, int) and value >= 1, "a whole number of at least 1")
    check("hidden_size", config.hidden_size % config.num_attention_heads == 0, "a multiple of num_attention_heads")
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"):
        rate = getattr(config, name)
        given = rate is not None or name != "classifier_dropout"
        check(name, not given or (isinstance(rate, (int, float)) and 0 <= rate < 1), "at least 0 and below 1")
    for name in ("initializer_range", "layer_norm_eps"):
        check(name, isinstance(getattr(config, name), (int, float)), "a number")
    check("hidden_act", config.hidden_act in ACT2FN, f"one of {', '.join(sorted(ACT2FN))}")
    return config


def _labels(names: list[str]) -> dict:
    return {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}


def load_weights(network: transformers.TFBertForSequenceClassification, folder: pathlib.Path) -> list[str]:
    """Give a network the weights in a model folder, whatever format they have.

    PyTorch's safetensors are read as NumPy arrays, so torch is not needed. (transformers 4.55 to 4.57 cannot read them
    into a TensorFlow model by itself.)

    Returns:
      the names of the variables that the folder has no fitting weights for; they keep their new values.

    Raises:
      UserError: there are no weights that can be read without running code from the file.
    """
    files = model_folder.weight_files(folder)
    if files[0].suffix == ".h5":
        return _load_tensorflow(network, folder)
    tensors = {}
    for file in files:
        with model_folder.open_safetensors(file) as opened:
            if (opened.metadata() or {}).get("format") == "tf":
                return _load_tensorflow(network, folder)
        tensors.update(safetensors.numpy.load_file(file))
    # The head's shape is the number of labels: that of other labels is left out, and reported as missing.
    if "classifier.weight" in tensors and len(tensors["classifier.weight"]) != network.config.num_labels:
        del tensors["classifier.weight"]
        tensors.pop("classifier.bias", None)
    try:
        _, information = load_pytorch_state_dict_in_tf2_model(
            network, tensors, allow_missing_keys=True, output_loading_info=True, skip_logger_warnings=True
        )
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        raise UserError(f"--model={folder}: its weights do not fit its config.json: {error}") from None
    new = sorted(information["missing_keys"])
    if len(new) >= len(network.trainable_variables) - 2:  # all but the head
        raise UserError(f"--model={folder}: none of its {len(tensors)} tensors is one of a BERT's")
    return new


def _load_tensorflow(network, folder: pathlib.Path) -> list[str]:
    """Load the formats that transformers writes from TensorFlow: its own safetensors, or HDF5."""
    try:
        loaded, information = transformers.TFBertForSequenceClassification.from_pretrained(
            folder, config=network.config, output_loading_info=True, ignore_mismatched_sizes=True, local_files_only=True
        )
    except (OSError, ValueError) as error:
        raise UserError(f"--model={folder}: its TensorFlow weights cannot be read: {error}") from None
    values = {_inner_name(variable): variable for variable in loaded.variables}
    for variable in network.variables:
        variable.assign(values[_inner_name(variable)])
    return sorted({*information["missing_keys"], *(name for name, *_ in information["mismatched_keys"])})


def _inner_name(variable) -> str:
    """A variable's name without its model's, which Keras numbers."""
    return variable.name.partition("/")[2]
