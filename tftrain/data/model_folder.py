"""Finds a pretrained model's folder and the files in it, without TensorFlow."""

import json
import pathlib

import safetensors

from tftrain import paths
from tftrain.errors import UserError

# What is fetched from a hub: nothing that is unpickled or run.
_WANTED = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    "*.safetensors*",
]


def find(model: str) -> pathlib.Path:
    """The local folder of a model: the folder itself, or the local copy of a Hugging Face hub's model.

    Raises:
      UserError: no such folder, and no such model on a hub in reach.
    """
    folder = paths.given("model", model)
    if folder.is_dir():
        return folder
    if folder.exists():
        raise UserError(f"--model={model}: this is a file; the folder that holds config.json is needed")
    if model.startswith((".", "/", "~")) or model.count("/") > 1 or "\\" in model:
        raise UserError(f"--model={model}: no such folder")

    import huggingface_hub
    from huggingface_hub import errors

    remedy = "pass --model=FOLDER with its config.json, model.safetensors and vocab.txt"
    try:
        return pathlib.Path(huggingface_hub.snapshot_download(model, allow_patterns=_WANTED))
    except errors.HFValidationError:
        raise UserError(
            f"--model={model}: neither a folder here nor a name that the Hugging Face hub can have"
        ) from None
    except errors.LocalEntryNotFoundError:
        raise UserError(
            f"--model={model}: no such folder here, and the Hugging Face hub cannot be reached; {remedy}"
        ) from None
    except errors.RepositoryNotFoundError:
        raise UserError(
            f"--model={model}: neither a folder here nor a model on the Hugging Face hub; {remedy}"
        ) from None
    except (OSError, errors.HfHubHTTPError) as error:
        raise UserError(f"--model={model}: fetching it from the Hugging Face hub failed ({error}); {remedy}") from None


def check(folder: pathlib.Path, model_type: str) -> None:
    """Refuse a folder that lacks a configuration, a vocabulary or weights, or that holds another kind of model.

    Args:
      folder: from `find`.
      model_type: what config.json has to say, such as "bert".

    Raises:
      UserError: which says what is missing and what was found.
    """
    read_config(folder, model_type)
    if not any((folder / name).is_file() for name in ("tokenizer.json", "vocab.txt")):
        raise UserError(f"--model={folder}: no tokenizer.json or vocab.txt in it ({_listing(folder)})")
    for file in weight_files(folder):
        if file.suffix == ".safetensors":
            open_safetensors(file)


def read_config(folder: pathlib.Path, model_type: str) -> dict:
    """What a model folder's config.json says.

    Raises:
      UserError: the file is missing or no JSON object, or it is of another kind of model.
    """
    values = read_json(folder / "config.json")
    found = values.get("model_type")
    if found != model_type:
        raise UserError(f"--model={folder}: its config.json says model_type {found!r}; {model_type!r} is needed")
    return values


def open_safetensors(file: pathlib.Path):
    """An open safetensors file, whose header and size have been checked.

    Raises:
      UserError: it is truncated, or another kind of file.
    """
    try:
        return safetensors.safe_open(file, "np")
    except (safetensors.SafetensorError, OSError) as error:
        raise UserError(f"--model={file.parent}: {file.name} cannot be read: {error}") from None


def weight_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """The files of a folder's weights: safetensors, whole or in shards, else TensorFlow's HDF5.

    Raises:
      UserError: there are none, or only a pickled PyTorch file, which is not read since unpickling runs code from it.
    """
    whole, index, hdf5 = (folder / n for n in ("model.safetensors", "model.safetensors.index.json", "tf_model.h5"))
    if whole.is_file():
        return [whole]
    if index.is_file():
        names = read_json(index).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            raise UserError(f"--model={folder}: {index.name} has no weight_map from tensors to files")
        shards = sorted({folder / name for name in names.values()})
        missing = [shard.name for shard in shards if not shard.is_file()]
        if missing or not shards:
            raise UserError(f"--model={folder}: {index.name} names shards that are not there: {', '.join(missing)}")
        return shards
    if hdf5.is_file():
        return [hdf5]
    if (folder / "pytorch_model.bin").is_file():
        raise UserError(
            f"--model={folder}: it has only pytorch_model.bin, a pickle, which is not read because that runs code from "
            "it; where torch is installed, from_pretrained(FOLDER).save_pretrained(FOLDER) writes model.safetensors"
        )
    raise UserError(f"--model={folder}: no model.safetensors or tf_model.h5 in it ({_listing(folder)})")


def read_json(file: pathlib.Path) -> dict:
    """A JSON object from a model folder.

    Raises:
      UserError: the file is missing or not a JSON object.
    """
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"--model={file.parent}: no {file.name} in it ({_listing(file.parent)})") from None
    except (OSError, ValueError) as error:
        raise UserError(f"--model={file.parent}: {file.name} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"--model={file.parent}: {file.name} is not a JSON object")
    return value


def _listing(folder: pathlib.Path) -> str:
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if not names:
        return "it is empty"
    return "it holds " + ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
