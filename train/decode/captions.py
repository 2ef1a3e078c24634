"""Captions of image files by a trained model."""

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
TOGETHER = 32  # images at a time


@dataclasses.dataclass(frozen=True)
class CaptionWriter:
    """A trained model of captioning.

    Attributes:
      config: The config of its run.
      tokeniser: The tokeniser of the captions.
      model: The network, unbound.
      params: Its parameters.
    """

    config: Config
    tokeniser: tokenisers.Tokeniser
    model: nn.Module
    params: dict

    @classmethod
    def load(cls, directory: Path, step: str = "best", replica: int = 0) -> "CaptionWriter":
        """Loads the model of a run; see `trained.load_params`.

        Raises:
          UsageError: that raises it, or the run has another task than `captioning`.
        """
        config = trained.config_of(directory, "captioning", "write captions of images")
        tokeniser = tokenisers.loads(workdir.read_file(directory, TOKENISER))
        shape = transforms.output_shape(transforms.parse(config.data.eval_transforms), config.data.stated_shape)
        sizes = (shape, tokeniser.size, config.data.target_length)
        model = config.model.build(*sizes, dtype=jnp.dtype(config.train.precision))
        init = lambda key: model.init(key, jnp.zeros((1, *shape)), None, jnp.zeros((1, 1), jnp.int32))["params"]  # noqa: E731
        vocabularies = {"embed_target": (TOKENISER, tokeniser.size)}
        _, params = trained.load_params(directory, step, config, init, vocabularies, replica)
        return cls(config, tokeniser, model, params)

    def captions(self, files: Sequence[Path], search: Search, seed: int = 0) -> list[str]:
        """Returns a caption of each image, in order.

        Args:
          files: Files of images of any size, which are scaled and cropped to the size that the model was trained for.
          search: How captions are searched for.
          seed: The seed of draws.

        Raises:
          UsageError: a file is no image.
        """
        chain, shape = transforms.parse(self.config.data.eval_transforms), self.config.data.stated_shape
        pictures = [transforms.apply(chain, images.read(file, shape)) for file in files]
        key, rows = trained.key_of(seed), []
        for first in range(0, len(pictures), TOGETHER):
            batch = jnp.stack(pictures[first : first + TOGETHER])
            special = tokenisers.marks(self.tokeniser.special)
            output, _ = translate(
                self.model, self.params, batch, None, search, jax.random.fold_in(key, first), **special
            )
            rows += list(np.asarray(output.tokens))
        return [self.tokeniser.decode(row) for row in rows]
