"""Captions that a trained model writes for image files."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from train.config.schema import Config
from train.data import tokenisers
from train.data.encodings import images
from train.data.images import transforms
from train.decode import trained
from train.generation.decoding import translate
from train.generation.search import Search
from train.run import workdir

TOKENISER = "target_tokeniser.json"
TOGETHER = 32  # images in a batch


@dataclasses.dataclass(frozen=True)
class CaptionWriter:
    """A trained captioner."""

    config: Config
    tokeniser: tokenisers.Tokeniser
    model: nn.Module
    params: dict

    @classmethod
    def load(cls, directory: Path, step: str = "best", replica: int = 0) -> "CaptionWriter":
        """Loads a run's model; see `trained.load_params`."""
        config = trained.config_of(directory, "captioning", "write captions of images")
        tokeniser = tokenisers.loads(workdir.read_file(directory, TOKENISER))
        shape = transforms.output_shape(transforms.parse(config.data.eval_transforms), config.data.stated_shape)
        sizes = (shape, tokeniser.size, config.data.target_length)
        example = (np.zeros((1, *shape), np.float32), None, np.zeros((1, 1), np.int32))
        vocabularies = {"embed_target": (TOKENISER, tokeniser.size)}
        return cls(
            config, tokeniser, *trained.load_model(directory, step, replica, config, sizes, example, vocabularies)
        )

    def captions(self, files: Sequence[Path], search: Search, seed: int = 0) -> list[str]:
        """Describes images of any size, scaled and cropped to the size that the model was trained on."""
        chain, shape = transforms.parse(self.config.data.eval_transforms), self.config.data.stated_shape
        pictures = [transforms.apply(chain, images.read(file, shape)) for file in files]
        key, texts = trained.key_of(seed), []
        for first in range(0, len(pictures), TOGETHER):
            batch, own = jnp.stack(pictures[first : first + TOGETHER]), jax.random.fold_in(key, first)
            marks = tokenisers.marks(self.tokeniser.special)
            output, _ = translate(self.model, self.params, batch, None, search, own, **marks)
            texts += map(self.tokeniser.decode, np.asarray(output.tokens))
        return texts
