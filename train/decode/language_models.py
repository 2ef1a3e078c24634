"""Trained GPTs with their tokenisers, from runs and from published models."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from models.files import at_home, read_text
from models.gpt import GPT, GPTConfig
from models.published import hugging_face, pretrained
from train.data import tokenisers
from train.data.tokenisers import Tokeniser
from train.data.tokenisers.base import Ids
from train.decode import trained
from train.run import workdir

GPTS = tuple(one for one in pretrained.ARCHITECTURES if one.config is GPTConfig)
TOKENISER = "tokeniser.json"
SHORTEST = 32  # tokens to which short sequences are padded when they are scored
TOGETHER = 16  # sequences that are scored at once


@dataclasses.dataclass(frozen=True)
class LanguageModel:
    """A trained GPT and its tokeniser."""

    model: GPT
    params: dict
    tokeniser: Tokeniser
    context: int  # the most tokens of a sequence in training
    end: int  # the token that ends a text; -1 if the model never saw one
    first: int  # the token before a text: the end of the text before where texts have ends, else the start
    published: str  # the folder or the name on the hub that the weights came from; '' if they came from neither

    @classmethod
    def of_run(cls, directory: Path, step: str = "best", replica: int = 0, purpose: str = "") -> "LanguageModel":
        """Loads a run's model; `purpose` says in errors what it is for. See `trained.load_params`."""
        config = trained.config_of(directory, "language_modelling", purpose or "are language models")
        tokeniser = tokenisers.loads(workdir.read_file(directory, TOKENISER))
        sizes, vocabularies = (tokeniser.size, config.data.context), {"embed": (TOKENISER, tokeniser.size)}
        example = (np.zeros((1, 1), np.int32),)
        model, params = trained.load_model(directory, step, replica, config, sizes, example, vocabularies)
        kind, _, place = config.data.tokeniser.partition(":")
        source = config.model.pretrained or (place.partition("@")[0] if kind == "hf" else "")
        end = tokeniser.special["end"] if config.data.end_token else -1
        first = end if config.data.end_token else start_of(tokeniser)
        return cls(model, params, tokeniser, config.data.context, end, first, source)

    @classmethod
    def of_published(cls, source: str) -> "LanguageModel":
        """Loads a published GPT, from a folder or by its name on the hub, for as many tokens as it supports."""
        described = pretrained.describe(source, GPTS)
        config = GPTConfig(**{"name": "gpt", "pretrained": source} | described.fields)
        model = config.build(described.vocabulary, described.length)
        shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))["params"])
        params, _ = pretrained.load(source, config, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes))
        tokeniser = tokenisers.loads(read_text(hugging_face.find(source, "tokenizer.json"), "give another model"))
        end, first = tokeniser.special.get("end", -1), start_of(tokeniser)
        return cls(model, params, tokeniser, described.length, end, first, source)

    @classmethod
    def of(cls, place: str) -> "LanguageModel":
        """Loads the best step of a work directory, or else the published model with this name."""
        directory = at_home(place)
        is_run = (directory / TOKENISER).is_file() and (directory / "checkpoints").is_dir()
        return cls.of_run(directory) if is_run else cls.of_published(place)

    def scores(self, rows: Sequence[tuple[Ids, int]]) -> list[tuple[float, bool]]:
        """Sums the log-probabilities, in nats, of the last tokens of sequences, each given the tokens before it.

        A row is a sequence of at most `context` + 1 tokens and the number of last tokens, which must leave one before
        them. Also tells whether each of the last tokens is the most probable one at its place.
        """
        scores: dict[int, tuple[float, bool]] = {}
        order = sorted(range(len(rows)), key=lambda place: len(rows[place][0]))
        for first in range(0, len(rows), TOGETHER):
            places = order[first : first + TOGETHER]
            longest = max(len(rows[at][0]) for at in places)
            length = max(longest, min(max(SHORTEST, 1 << (longest - 1).bit_length()), self.context + 1))
            padded = np.zeros((min(TOGETHER, len(rows)), length), np.int32)  # few shapes, so few programs are compiled
            for row, at in zip(padded, places, strict=False):
                row[: len(rows[at][0])] = rows[at][0]
            for at, logs, highest in zip(places, *jax.device_get(_next(self.model, self.params, padded)), strict=False):
                tokens, count = rows[at]
                last = slice(len(tokens) - 1 - count, len(tokens) - 1)
                scores[at] = float(logs[last].sum(dtype=np.float64)), bool(highest[last].all())
        return [scores[at] for at in range(len(rows))]


def start_of(tokeniser: Tokeniser) -> int:
    """Chooses the token before a text: the start, or where a tokeniser has none the end of the text before."""
    return tokeniser.special.get("start", tokeniser.special.get("end", 0))


@functools.partial(jax.jit, static_argnums=0)
def _next(model: GPT, params: dict, tokens: Int[Array, "B T"]) -> tuple[Float[Array, "B L"], Bool[Array, "B L"]]:
    """Measures each later token's log-probability, and tells whether it is the most probable one."""
    logits, targets = model.apply({"params": params}, tokens[:, :-1]), tokens[:, 1:]
    logs = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)[..., 0]
    return logs, jnp.argmax(logits, axis=-1) == targets
