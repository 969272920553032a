import json

import numpy as np
import pytest
import safetensors.numpy

from tftrain.data import model_folder
from tftrain.errors import UserError

BERT = '{"model_type": "bert"}'


def make(folder, *names, config=BERT):
    for name in names:
        (folder / name).write_bytes(b"")
    if config is not None:
        (folder / "config.json").write_text(config)
    return folder


def refusal(function, *arguments) -> str:
    with pytest.raises(UserError) as caught:
        function(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_find_takes_a_folder(tmp_path):
    assert model_folder.find(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("model", ["/absent/folder", "./absent", "~/absent-folder", "a/b/c", "a\\b"])
def test_find_says_that_a_folder_is_missing(model):
    assert refusal(model_folder.find, model) == f"--model={model}: no such folder"


def test_find_refuses_a_file(tmp_path):
    file = make(tmp_path) / "config.json"
    assert "this is a file; the folder that holds config.json is needed" in refusal(model_folder.find, str(file))


@pytest.mark.parametrize(
    "names, config, expected",
    [
        ([], None, "no config.json in it (it is empty)"),
        (["model.safetensors", "vocab.txt"], None, "no config.json in it (it holds model.safetensors, vocab.txt)"),
        (["model.safetensors", "vocab.txt"], "{", "config.json cannot be read"),
        (["model.safetensors", "vocab.txt"], "[]", "config.json is not a JSON object"),
        (["model.safetensors", "vocab.txt"], "{}", "model_type None; 'bert' is needed"),
        (["vocab.txt"], '{"model_type": "gpt2"}', "model_type 'gpt2'; 'bert' is needed"),
        (["model.safetensors"], BERT, "no tokenizer.json or vocab.txt in it"),
        (["vocab.txt"], BERT, "no model.safetensors or tf_model.h5 in it (it holds config.json, vocab.txt)"),
        (["vocab.txt", "pytorch_model.bin"], BERT, "only pytorch_model.bin, a pickle, which is not read"),
        (["vocab.txt", "model.safetensors.index.json"], BERT, "model.safetensors.index.json cannot be read"),
    ],
)
def test_check_says_what_is_missing_and_what_is_there(tmp_path, names, config, expected):
    message = refusal(model_folder.check, make(tmp_path, *names, config=config), "bert")
    assert message.startswith(f"--model={tmp_path}: ")
    assert expected in message


@pytest.mark.parametrize("vocabulary", ["vocab.txt", "tokenizer.json"])
@pytest.mark.parametrize("weights", ["model.safetensors", "tf_model.h5"])
def test_check_takes_any_format_that_can_be_read(tmp_path, vocabulary, weights):
    make(tmp_path, vocabulary, weights, "pytorch_model.bin")
    if weights == "model.safetensors":
        safetensors.numpy.save_file({"x": np.zeros(3)}, tmp_path / weights)
    model_folder.check(tmp_path, "bert")
    assert model_folder.weight_files(tmp_path) == [tmp_path / weights]


def test_safetensors_go_before_the_rest(tmp_path):
    make(tmp_path, "tf_model.h5", "model.safetensors", "pytorch_model.bin")
    assert model_folder.weight_files(tmp_path) == [tmp_path / "model.safetensors"]


def test_shards_are_found_by_their_index_and_missing_ones_named(tmp_path):
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors", "c": "one.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    make(tmp_path, "one.safetensors", "two.safetensors")
    assert model_folder.weight_files(tmp_path) == [tmp_path / "one.safetensors", tmp_path / "two.safetensors"]
    (tmp_path / "two.safetensors").unlink()
    assert "names shards that are not there: two.safetensors" in refusal(model_folder.weight_files, tmp_path)


def test_truncated_weights_are_found_without_tensorflow(tmp_path):
    make(tmp_path, "vocab.txt")
    whole = safetensors.numpy.save({"x": np.zeros(100)})
    for content in (b"", whole[:20], whole[:-1]):
        (tmp_path / "model.safetensors").write_bytes(content)
        assert "model.safetensors cannot be read" in refusal(model_folder.check, tmp_path, "bert")


@pytest.mark.parametrize("index", ["{}", '{"weight_map": ["a"]}', '{"weight_map": {"a": 3}}', '{"weight_map": null}'])
def test_an_index_without_a_map_is_refused(tmp_path, index):
    (make(tmp_path, "vocab.txt") / "model.safetensors.index.json").write_text(index)
    assert "has no weight_map from tensors to files" in refusal(model_folder.check, tmp_path, "bert")


def test_long_listings_are_cut(tmp_path):
    make(tmp_path, "vocab.txt", *(f"file{i}" for i in range(20)))
    assert refusal(model_folder.check, tmp_path, "bert").endswith("and 14 more)")
