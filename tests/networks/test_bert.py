import json
import math

import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf
import tf_keras as keras
import tokenizers
import transformers

from tests import helpers
from tftrain import training_step
from tftrain.errors import UserError
from tftrain.networks import bert

SIZES = dict(vocab_size=30, hidden_size=8, layers=2, intermediate_size=12, positions=10)
CONFIG = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "vocab_size": 30,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 10,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}


def checkpoint(prefix: str = "", labels: int = 0, seed: int = 0) -> dict[str, np.ndarray]:
    """Random weights under the names and in the shapes that PyTorch's BertModel saves."""
    generator = np.random.default_rng(seed)
    width, inner = SIZES["hidden_size"], SIZES["intermediate_size"]
    shapes = {
        "embeddings.word_embeddings.weight": (SIZES["vocab_size"], width),
        "embeddings.position_embeddings.weight": (SIZES["positions"], width),
        "embeddings.token_type_embeddings.weight": (2, width),
        "embeddings.LayerNorm.weight": (width,),
        "embeddings.LayerNorm.bias": (width,),
        "pooler.dense.weight": (width, width),
        "pooler.dense.bias": (width,),
    }
    for layer in range(SIZES["layers"]):
        dense = {
            "attention.self.query": (width, width),
            "attention.self.key": (width, width),
            "attention.self.value": (width, width),
            "attention.output.dense": (width, width),
            "intermediate.dense": (inner, width),
            "output.dense": (width, inner),
        }
        for name, shape in dense.items():
            shapes[f"encoder.layer.{layer}.{name}.weight"] = shape
            shapes[f"encoder.layer.{layer}.{name}.bias"] = shape[:1]
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes[f"encoder.layer.{layer}.{name}.weight"] = (width,)
            shapes[f"encoder.layer.{layer}.{name}.bias"] = (width,)
    shapes = {prefix + name: shape for name, shape in shapes.items()}
    if labels:
        shapes |= {"classifier.weight": (labels, width), "classifier.bias": (labels,)}
    return {name: generator.normal(size=shape).astype(np.float32) * 0.5 for name, shape in shapes.items()}


def save(folder, tensors, name="model.safetensors"):
    (folder / "config.json").write_text(json.dumps(CONFIG))
    safetensors.numpy.save_file(tensors, folder / name, metadata={"format": "pt"})
    return folder


def load(folder, labels=5):
    network = bert.build(bert.read_config(folder, [f"label {i}" for i in range(labels)]))
    return network, bert.load_weights(network, folder)


def erf(x):
    return np.vectorize(math.erf)(x)


def forward(tensors: dict, ids, mask, prefix: str = "") -> np.ndarray:
    """The pooled output of BERT (Devlin et al., 2019), in NumPy."""
    weights = {name.removeprefix(prefix): value.astype(np.float64) for name, value in tensors.items()}

    def dense(x, name):
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def normalise(x, name):
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    x = weights["embeddings.word_embeddings.weight"][ids]
    x = x + weights["embeddings.position_embeddings.weight"][: ids.shape[1]]
    x = normalise(x + weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    heads, width = CONFIG["num_attention_heads"], SIZES["hidden_size"]
    for layer in range(SIZES["layers"]):
        at = f"encoder.layer.{layer}."

        def divide(y):
            return y.reshape(*y.shape[:2], heads, width // heads).transpose(0, 2, 1, 3)

        query, key, value = (divide(dense(x, f"{at}attention.self.{name}")) for name in ("query", "key", "value"))
        scores = query @ key.transpose(0, 1, 3, 2) / np.sqrt(width // heads)
        scores = np.where(mask[:, None, None, :] == 1, scores, -np.inf)
        share = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (share / share.sum(-1, keepdims=True) @ value).transpose(0, 2, 1, 3).reshape(x.shape)
        x = normalise(x + dense(mixed, f"{at}attention.output.dense"), f"{at}attention.output.LayerNorm")
        inner = dense(x, f"{at}intermediate.dense")
        inner = inner * 0.5 * (1 + erf(inner / np.sqrt(2)))
        x = normalise(x + dense(inner, f"{at}output.dense"), f"{at}output.LayerNorm")
    return np.tanh(dense(x[:, 0], "pooler.dense"))


IDS = np.random.default_rng(4).integers(1, 30, (3, 6))
MASK = np.array([[1] * 6, [1] * 4 + [0] * 2, [1] + [0] * 5])
INPUTS = {"input_ids": tf.constant(IDS, tf.int32), "attention_mask": tf.constant(MASK, tf.int32)}


@pytest.mark.parametrize("prefix", ["", "bert."])
@pytest.mark.parametrize("labels", [0, 5])
def test_a_pytorch_checkpoint_computes_what_bert_computes(tmp_path, prefix, labels):
    tensors = checkpoint(prefix, labels)
    network, new = load(save(tmp_path, tensors))
    pooled = forward(tensors, IDS, MASK, prefix)
    kernel, bias = (variable.numpy() for variable in network.classifier.weights)
    if labels:
        assert new == []
        np.testing.assert_array_equal(kernel, tensors["classifier.weight"].T)
        np.testing.assert_array_equal(bias, tensors["classifier.bias"])
    else:
        assert len(new) == 2 and all("classifier" in name for name in new)
    logits = network(INPUTS).logits
    assert logits.dtype == tf.float32
    np.testing.assert_allclose(logits, pooled @ kernel + bias, rtol=2e-4, atol=2e-5)


def test_a_head_for_other_labels_is_new_and_reported(tmp_path):
    network, new = load(save(tmp_path, checkpoint("bert.", labels=2)), labels=5)
    assert new == ["classifier.bias", "classifier.weight"]
    assert network(INPUTS).logits.shape == (3, 5)
    assert network.config.id2label == {i: f"label {i}" for i in range(5)}


def test_a_layer_that_the_folder_lacks_is_reported(tmp_path):
    tensors = {name: value for name, value in checkpoint(labels=5).items() if not name.startswith("encoder.layer.1.")}
    _, new = load(save(tmp_path, tensors))
    assert len(new) == 16
    assert all("encoder.layer.1." in name for name in new)


def test_float16_weights_are_read(tmp_path):
    tensors = {name: value.astype(np.float16) for name, value in checkpoint(labels=5).items()}
    network, new = load(save(tmp_path, tensors))
    assert new == []
    np.testing.assert_array_equal(network.classifier.weights[1], tensors["classifier.bias"].astype(np.float32))
    assert all(variable.dtype == tf.float32 for variable in network.weights)


def test_shards_are_read(tmp_path):
    tensors = checkpoint(labels=5)
    names = sorted(tensors)
    shards = {"one.safetensors": names[::2], "two.safetensors": names[1::2]}
    for shard, held in shards.items():
        save(tmp_path, {name: tensors[name] for name in held}, shard)
    weight_map = {name: shard for shard, held in shards.items() for name in held}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    network, new = load(tmp_path)
    assert new == []
    kernel, bias = (variable.numpy() for variable in network.classifier.weights)
    expected = forward(tensors, IDS, MASK) @ kernel + bias
    np.testing.assert_allclose(network(INPUTS).logits, expected, rtol=2e-4, atol=2e-5)


def test_tensorflow_s_own_format_is_read(tmp_path):
    network, _ = load(save(tmp_path, checkpoint(labels=5)))
    folder = tmp_path / "h5"
    network.save_pretrained(folder, safe_serialization=False)
    assert [path.name for path in folder.glob("*.h5")] == ["tf_model.h5"]
    other, new = load(folder)
    assert new == []
    for found, expected in zip(other.weights, network.weights):
        np.testing.assert_array_equal(found.numpy(), expected.numpy(), err_msg=expected.name)
    other, new = load(folder, labels=3)
    assert len(new) == 2 and all("classifier" in name for name in new)


def test_tensorflow_s_own_safetensors_are_read(tmp_path):
    network, _ = load(save(tmp_path, checkpoint(labels=5)))
    folder = tmp_path / "tf"
    network.save_pretrained(folder, safe_serialization=True)
    assert [path.name for path in folder.glob("*.safetensors")] == ["model.safetensors"]
    other, new = load(folder)
    assert new == []
    for found, expected in zip(other.weights, network.weights):
        np.testing.assert_array_equal(found.numpy(), expected.numpy(), err_msg=expected.name)


def test_weights_that_do_not_fit_are_refused(tmp_path):
    tensors = checkpoint()
    tensors["embeddings.word_embeddings.weight"] = tensors["embeddings.word_embeddings.weight"][:20]
    with pytest.raises(UserError, match=r"its weights do not fit its config\.json"):
        load(save(tmp_path, tensors))


def test_weights_of_another_model_are_refused(tmp_path):
    with pytest.raises(UserError, match="none of its 2 tensors is one of a BERT's"):
        load(save(tmp_path, {"wte.weight": np.ones([3, 3], np.float32), "wpe.weight": np.ones([3, 3], np.float32)}))


def test_a_broken_file_is_refused(tmp_path):
    save(tmp_path, checkpoint(labels=5))
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(UserError, match=r"model\.safetensors cannot be read"):
        load(tmp_path)


@pytest.mark.parametrize(
    "values, expected",
    [
        ({"hidden_act": "snake"}, "hidden_act 'snake'; it should be one of gelu, "),
        ({"hidden_size": "8"}, "hidden_size '8'; it should be a whole number of at least 1"),
        ({"hidden_size": None}, "hidden_size None; it should be a whole number of at least 1"),
        ({"num_hidden_layers": -1}, "num_hidden_layers -1; it should be a whole number of at least 1"),
        ({"num_attention_heads": 3}, "hidden_size 8; it should be a multiple of num_attention_heads"),
        ({"hidden_dropout_prob": 1.5}, "hidden_dropout_prob 1.5; it should be at least 0 and below 1"),
        ({"initializer_range": "x"}, "initializer_range 'x'; it should be a number"),
    ],
)
def test_a_configuration_that_no_bert_can_have_is_refused(tmp_path, values, expected):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | values))
    with pytest.raises(UserError) as caught:
        bert.read_config(tmp_path, ["a", "b"])
    assert f"--model={tmp_path}: its config.json says {expected}" in str(caught.value)


def test_a_broken_hdf5_file_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "tf_model.h5").write_bytes(b"no HDF5")
    with pytest.raises(UserError, match="its TensorFlow weights cannot be read"):
        bert.load_weights(bert.build(bert.read_config(tmp_path, ["a", "b"])), tmp_path)


def test_a_head_without_a_bias_for_other_labels_is_new(tmp_path):
    tensors = checkpoint(labels=2)
    del tensors["classifier.bias"]
    save(tmp_path, tensors)
    assert load(tmp_path, labels=5)[1] == ["classifier.bias", "classifier.weight"]


@pytest.mark.parametrize("kind", ["roberta", "distilbert", None])
def test_another_kind_of_model_is_refused(tmp_path, kind):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"model_type": kind}))
    with pytest.raises(UserError, match=f"model_type {kind!r}; 'bert' is needed"):
        bert.read_config(tmp_path, ["a"])


@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_logits_and_loss_are_float32_and_finite_though_a_row_is_all_padding(precision):
    keras.mixed_precision.set_global_policy(precision)
    network = helpers.build_network("bert")
    inputs = {
        "input_ids": tf.constant([[7, 8, 9, 0], [0, 0, 0, 0]]),
        "attention_mask": tf.constant([[1, 1, 1, 0], [0, 0, 0, 0]]),
    }
    logits = tf.function(lambda: network(inputs).logits, jit_compile=True)()
    losses = training_step.example_losses(tf.constant([0, 1]), logits)
    assert network.dtype_policy.name == precision
    assert logits.dtype == losses.dtype == tf.float32
    assert np.all(np.isfinite(logits)) and np.all(np.isfinite(losses))


def test_padding_does_not_change_a_text_s_logits():
    network = helpers.build_network("bert")
    short = {"input_ids": tf.constant([[7, 8, 9]]), "attention_mask": tf.constant([[1, 1, 1]])}
    padded = {name: tf.pad(value, [[0, 0], [0, 8]]) for name, value in short.items()}
    np.testing.assert_allclose(network(padded).logits, network(short).logits, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("words", [["c", "d", "e", "f", "g", "h"], ["c"]])
def test_a_tokenizer_with_numbers_beyond_the_embeddings_is_refused(words):
    """Too many tokens, or a gap in their numbers."""
    vocabulary = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, **{word: 10 - i for i, word in enumerate(words)}}
    tokenizer = transformers.BertTokenizerFast(
        tokenizer_object=tokenizers.BertWordPieceTokenizer(vocabulary)._tokenizer, mask_token=None
    )
    bert.check_vocabulary(bert.small_config(["a"], vocab_size=11), tokenizer)
    with pytest.raises(UserError, match="11 tokens and the model embeddings for 10"):
        bert.check_vocabulary(bert.small_config(["a"], vocab_size=10), tokenizer)
