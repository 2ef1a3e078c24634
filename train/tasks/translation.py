"""Translation: the loss of the target's next token, and BLEU, chrF and exact matches of what the model writes."""

import contextlib
import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from attention.errors import UsageError
from models.encoder_decoder import EncoderDecoderConfig
from models.published import pretrained
from models.seq2seq import Seq2SeqConfig
from train import losses
from train.config.schema import Config
from train.data.pairs.section import TranslationData
from train.data.tokenisers import marks
from train.decode import translation_scores
from train.decode.decoding import translate
from train.decode.search import Search
from train.devices import sharding
from train.step import Batch, Sums
from train.tasks.text import TextTask, perplexity, unsmoothed


class Translation(TextTask):
    """A model that translates a source to a target, and its pairs. Batches are those of `Sentences`.

    Pairs that are longer than the config's lengths are left out of training and evaluation, and counted. References
    are normalised as the target's tokeniser does it, for example to lower case.
    """

    writes = True
    data_type = TranslationData
    model_types: ClassVar = {"encoder_decoder": EncoderDecoderConfig, "seq2seq": Seq2SeqConfig}

    def sizes_of(self, config: Config) -> tuple[int, int, int, int]:
        """Returns the sizes of both vocabularies, and the tokens of the longest source and target.

        Raises:
          UsageError: the published weights do not fit the model.
        """
        source, target = self.corpus.tokenisers.values()
        if config.model.pretrained:
            # Raises an error before anything is compiled or written.
            pretrained.check_fit(config.model.pretrained, config.model, target.size, self.tokens, target.special)
        return source.size, target.size, config.data.source_length, config.data.target_length

    def inputs(self, batch: Batch) -> tuple[Any, ...]:
        """Returns the sources, how many of their tokens are not padding, and the decoder's input tokens."""
        return batch["source"], batch["source_length"], batch["tokens"]

    def check_stackable(self) -> None:
        """Raises UsageError where batches are bucketed; see `Task`."""
        if self._data.buckets:
            raise UsageError(
                f"data.buckets={self._data.buckets!r} gives batches of several lengths, which train.replicas cannot "
                "stack; set --config.data.buckets= (none), or train.replicas=1 (in a sweep --replicas=no)."
            )

    def loss(self, params: dict, batch: Batch, key: jax.Array | None) -> Sums:
        """Returns sums over the batch's target tokens, in nats, and the padding that would fill all targets."""
        weight = batch["weight"]
        sums = losses.sums(self.of_tokens(params, batch, key, losses.of_classes), weight)
        sentences = jnp.sum(jnp.any(weight > 0, axis=1))
        return sums | {"padding": sentences * self._data.target_length - sums["weight"]}

    def metrics(self, split: str, means: dict[str, float]) -> dict[str, float]:
        """Adds the perplexity of a token, and the accuracy as Sanger measures it.

        That accuracy counts the padding of all targets to one length, which a model trained on it predicts correctly.
        """
        plain, means = unsmoothed(means)
        padding = means.pop("padding")
        padded = (means["accuracy"] + padding) / (1 + padding)
        return means | {"perplexity": perplexity(plain), "accuracy_with_padding": padded}

    def measured(self, split: str, params: dict, mesh: jax.sharding.Mesh) -> dict[str, float]:
        """Returns BLEU, chrF and exact matches of all test sentences, or of some validation sentences if configured.

        If the config has groups of lengths, the test sentences of each group have a BLEU too.
        """
        if split == "test":
            texts = self.translations(split, params, mesh)
            lengths, groups = self.sources[split].source_lengths, self._data.groups
            return translation_scores.scores(*texts) | translation_scores.by_length(*texts, lengths, groups)
        if split == "validation" and self._data.translations:
            return translation_scores.scores(*self.translations(split, params, mesh, self._data.translations))
        return {}

    def translations(
        self, split: str, params: dict, mesh: jax.sharding.Mesh, most: int = 0
    ) -> tuple[list[str], list[str]]:
        """Returns the model's translations of a split's sentences, and their references, in the split's order.

        Args:
          split: The name of the split.
          params: The model's parameters, on the mesh.
          mesh: The mesh that splits batches.
          most: How many sentences to translate, from the first on; 0 is all.
        """
        sentences, target = self.sources[split], self.corpus.tokeniser
        share = (jax.process_index(), jax.process_count())
        decoded: dict[int, str] = {}
        with contextlib.closing(sentences.eval_batches(*share, most)) as stream:
            for batch in stream:
                rows, indices = self._translated(params, batch, mesh)
                pairs = zip(rows, indices, strict=True)
                decoded |= {int(index): target.decode(row) for row, index in pairs if index >= 0}
        indices = sorted(decoded)
        return [decoded[index] for index in indices], self._references(split, tuple(indices))

    def remarks(self) -> list[str]:
        """Adds a line about the pairs that were left out."""
        counts = {split: sentences.too_long for split, sentences in self.sources.items()}
        lengths = f"{self._data.source_length} and {self._data.target_length} tokens"
        left_out = ", ".join(f"{count:,} {split}" for split, count in counts.items() if count)
        return super().remarks() + ([f"Left out, as longer than {lengths}: {left_out} pairs"] if left_out else [])

    def describe(self, params: dict) -> dict[str, Any]:
        """Adds the sizes of the vocabularies, the number of pairs left out, and the signatures of the scores."""
        return {
            **super().describe(params),
            "source_vocabulary": self.corpus.tokenisers["source"].size,
            **{f"too_long_{split}": sentences.too_long for split, sentences in self.sources.items()},
            **translation_scores.signatures(),
        }

    @property
    def tokens(self) -> int:
        """The tokens of the longest source or target."""
        return max(self._data.source_length, self._data.target_length)

    def lengths(self) -> dict[str, int]:
        """Returns the tokens of sources and targets, and those of each bucket."""
        sizes = {"data.source_length": self._data.source_length, "data.target_length": self._data.target_length}
        return sizes | {f"bucket {n} of data.buckets": bound for n, bound in enumerate(self._data.bounds[:-1], 1)}

    def attention_layer(self, params: dict) -> dict:
        """Returns the encoder's parameters, or those of a recurrent model's score, which may have none."""
        return params["encoder_0"]["attention"] if "encoder_0" in params else params.get("coefficients", {})

    @functools.cache  # noqa: B019  a task lives as long as its program, and this reads the whole source
    def _references(self, split: str, indices: tuple[int, ...]) -> list[str]:
        texts = self.corpus.texts(split, "target", np.array(indices))
        return [self.corpus.tokeniser.normalise(text) for text in texts]

    def _translated(self, params: dict, batch: Batch, mesh: jax.sharding.Mesh) -> tuple[np.ndarray, np.ndarray]:
        """Returns padded tokens and the index of each row's pair, from all processes."""
        ours = sharding.to_devices({name: batch[name] for name in ("source", "source_length", "index")}, mesh)
        output, _ = translate(
            self.model,
            params,
            ours["source"],
            ours["source_length"],
            search(self._data),
            jax.random.key(0),
            **marks(self.corpus.tokeniser.special),
        )
        return multihost_utils.process_allgather((output.tokens, ours["index"]), tiled=True)

    def _example(self) -> Batch:
        batch = self.sources["validation"].batch(np.zeros(1, np.int64), self._data.bounds[-1])
        return {name: jnp.asarray(value) for name, value in batch.items()}


def search(data: TranslationData) -> Search:
    """Returns the search that the config asks for."""
    return Search(data.beams, data.length_penalty, data.target_length)
