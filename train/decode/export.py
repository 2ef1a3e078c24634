"""The export of a trained model to `transformers`, with its tokenisers and a model card."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import unflatten_dict

from attention.errors import UsageError
from models.files import read_json
from models.published import pretrained
from models.published.architectures import Architecture
from models.surgery.low_rank import is_addition
from train.data import tokenisers
from train.decode import trained
from train.run import workdir
from train.run.checkpoints import Checkpoints
from train.run.progress import numbers_text
from train.state import count_parameters

CARD = "README.md"


def export(directory: Path, folder: str, step: str = "best", replica: int = 0) -> None:
    """Writes a run's weights, tokenisers and model card to a folder; see `models.published.pretrained.export`.

    `transformers` must have the model, such as a RoBERTa or a ViT. The step is `best`, `last` or a checkpoint's.
    """
    config = workdir.load_config(directory)
    pretrained.architectures_of(config.model)
    with Checkpoints(directory, config.train.keep) as checkpoints:
        several = int(config.train.together > 1)
        shapes = checkpoints.shapes(checkpoints.choose(step, replica))
    plain = {path: shape[several:] for path, shape in shapes.items() if not is_addition(path)}

    def init(key: jax.Array) -> dict:
        return unflatten_dict({path: jnp.zeros(shape) for path, shape in plain.items()}, sep="/")

    number, params = trained.load_params(directory, step, config, init, {}, replica)
    texts = {file.name: workdir.read_file(directory, file.name) for file in directory.glob("*tokeniser.json")}
    special, length = {}, 0
    if config.task != "image_classification":
        if not texts:
            raise UsageError(f"{directory} keeps no tokeniser.json, which the exported model needs; give another run.")
        special = tokenisers.loads(sorted(texts.items())[-1][1]).special  # where there are two, the target's
        length = max(config.data.limits.values()) if hasattr(config.data, "limits") else config.data.context

    def with_card(architecture: Architecture) -> dict[str, str]:
        return texts | {CARD: card(directory, architecture, number, replica, count_parameters(params))}

    pretrained.export(folder, config.model, params, special, length, with_card)


def card(directory: Path, architecture: Architecture, step: int, replica: int, parameters: int) -> str:
    """Writes the model card: what the model is, how to load it, its metrics, data, config and versions."""
    try:
        return "\n".join(_lines(directory, architecture, step, replica, parameters))
    except UsageError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError) as error:  # the files hold something else
        raise UsageError(
            f"The result.json or data.json of {directory} is not that of a run ({error!r}); give another run."
        ) from error


def _lines(directory: Path, architecture: Architecture, step: int, replica: int, parameters: int) -> Iterator[str]:
    config, finished = workdir.read_config(directory), (directory / "result.json").is_file()
    result: dict[str, Any] = workdir.read_result(directory, replica) if finished else {}
    data = read_json(directory / "data.json", "give another run")
    yield from ("---", "library_name: transformers", "tags: [attention-bench]", "---", "", f"# {directory.name}", "")
    yield f"A {architecture.title} with {parameters:,} parameters, after step {step} of training with"
    yield f"the attention bench at commit {result.get('git', 'unknown')}."
    yield from ("", "## How to load it", "", "```python", f"from transformers import {architecture.transformers}", "")
    yield from (f'model = {architecture.transformers}.from_pretrained("FOLDER")', "```", "")
    texts = "Its tokenisers are in the attention bench's format: `data.tokeniser=file:FOLDER/tokeniser.json`."
    images = "Its images are transformed as `data.eval_transforms` says."
    yield images if config["task"] == "image_classification" else texts
    yield from ("", "## Metrics", "")
    steps = {result["steps"]: "final", result["best_step"]: "best"} if finished else {}  # these may be one
    for at, name in steps.items():
        yield from (f"- {split} after step {at}: {numbers_text(metrics)}" for split, metrics in result[name].items())
    yield from () if finished else ("The run has not finished.",)
    yield from ("", "## Data", "", f"`{config['data']['source']}`", "")
    yield from (f"- {name}: {part['examples']:,} examples, digest `{part['content']}`" for name, part in data.items())
    yield from ("", "## Config", "", "```json", json.dumps(config, indent=2), "```", "", "## Versions", "")
    yield from (f"- {package} {version}" for package, version in result.get("versions", {}).items())
    yield ""
