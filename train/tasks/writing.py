"""The base of the tasks that generate a text from a source: the loss of its tokens, and scores of whole texts."""

import contextlib
import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from train import losses
from train.data.tokenisers import marks
from train.generation import translation_scores
from train.generation.decoding import translate
from train.generation.search import Search
from train.mesh import sharding
from train.step import Batch, Sums
from train.tasks.text import TextTask, perplexity


class WritingTask(TextTask):
    """A model that generates a target from a source. The target's tokeniser normalises references."""

    writes = predicts_tokens = True
    source: ClassVar[tuple[str, ...]]  # the names in a batch of the source and, if it has padding, of its lengths

    def inputs(self, batch: Batch) -> tuple[Any, ...]:
        return *self._source(batch), batch["tokens"]

    def measures(self, params: dict, batch: Batch, key: jax.Array | None) -> Sums:
        """Adds to the losses of the target's tokens the padding that would fill the target."""
        weight = batch["weight"]
        sums = losses.of_examples(self.token_losses(params, batch, key, losses.of_classes), weight)
        return sums | {"padding": jnp.any(weight > 0, axis=1) * self._data.target_length - sums["weight"]}

    def metrics(self, split: str, means: dict[str, float]) -> dict[str, float]:
        """Adds the perplexity of a token, and the accuracy as Sanger measures it.

        That accuracy also counts padding, up to one length for all targets, as predicted correctly.
        """
        padding = means.pop("padding")
        padded = (means["accuracy"] + padding) / (1 + padding)
        return means | {"perplexity": perplexity(means["loss"]), "accuracy_with_padding": padded}

    def measured(self, split: str, params: dict, mesh: jax.sharding.Mesh) -> dict[str, float]:
        """Scores the texts generated for the test split and, if configured, for a part of the validation split."""
        if split == "test" or (split == "validation" and self._data.translations):
            most = 0 if split == "test" else self._data.translations
            return self.scores(split, *self.translations(split, self.merged(params), mesh, most))
        return {}

    def scores(self, split: str, texts: list[str], references: list[str]) -> dict[str, float]:
        """Scores the texts generated for a split."""
        del split
        return translation_scores.scores(texts, references)

    def translations(
        self, split: str, params: dict, mesh: jax.sharding.Mesh, most: int = 0
    ) -> tuple[list[str], list[str]]:
        """Generates a text for each of a split's first `most` sources (0 is all), and lists the references."""
        examples, target = self.sources[split], self.corpus.tokeniser
        share = (jax.process_index(), jax.process_count())
        decoded: dict[int, str] = {}
        with contextlib.closing(examples.eval_batches(*share, most)) as stream:
            for batch in stream:
                rows, indices = self._translated(params, batch, mesh)
                pairs = zip(rows, indices, strict=True)
                decoded |= {int(index): target.decode(row) for row, index in pairs if index >= 0}
        indices = sorted(decoded)
        return [decoded[index] for index in indices], self._references(split, tuple(indices))

    def remarks(self) -> list[str]:
        counts = {split: examples.too_long for split, examples in self.sources.items()}
        left_out = ", ".join(f"{count:,} {split}" for split, count in counts.items() if count)
        return super().remarks() + ([f"Left out, as longer than {self.limits}: {left_out} pairs"] if left_out else [])

    @property
    def tokens(self) -> int:
        return max(self.lengths().values())

    @property
    def limits(self) -> str:
        """The greatest length of an example, in words."""
        return f"{self._data.target_length} tokens"

    def describe(self, params: dict) -> dict[str, Any]:
        return {
            **super().describe(params),
            **{f"too_long_{split}": examples.too_long for split, examples in self.sources.items()},
            **translation_scores.signatures(),
        }

    def _source(self, batch: Batch) -> tuple[Any, Any]:
        source, *lengths = (batch[name] for name in self.source)
        return source, lengths[0] if lengths else None

    @functools.cache  # noqa: B019  a task lives as long as its program, and this reads the whole source
    def _references(self, split: str, indices: tuple[int, ...]) -> list[str]:
        texts = self.corpus.texts(split, "target", np.array(indices))
        return [self.corpus.tokeniser.normalise(text) for text in texts]

    def _translated(self, params: dict, batch: Batch, mesh: jax.sharding.Mesh) -> tuple[np.ndarray, np.ndarray]:
        """Generates padded tokens, and gathers them and the indices of their examples from all processes."""
        ours = sharding.to_devices({name: batch[name] for name in (*self.source, "index")}, mesh)
        output, _ = translate(
            self.model,
            params,
            *self._source(ours),
            Search.configured(self._data),
            jax.random.key(0),
            **marks(self.corpus.tokeniser.special),
        )
        return multihost_utils.process_allgather((output.tokens, ours["index"]), tiled=True)
