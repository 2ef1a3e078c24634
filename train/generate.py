"""Let a trained language model continue prompts.

python -m train.generate --workdir=runs/gpt --prompt="The return statement" --tokens=100 --temperature=0.8 --top-p=0.95
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from attention.errors import UsageError
from train import cli
from train.data import tokenisers
from train.decode import trained
from train.decode.decoding import Sampling, generate
from train.devices import compilation
from train.run import workdir

TOKENISER = "tokeniser.json"


def continuations(
    directory: Path,
    prompts: Sequence[str],
    tokens: int,
    sampling: Sampling,
    seed: int = 0,
    step: str = "best",
    replica: int = 0,
) -> list[str]:
    """Returns each prompt as the model of a run continues it.

    Args:
      directory: The work directory of a run of the task `language_modelling`.
      prompts: Texts of at least a token each.
      tokens: How many tokens to add.
      sampling: How tokens are chosen.
      seed: The seed of the draws.
      step: `best` (needs a finished run), `last` or a step that has a checkpoint.
      replica: The number of the replica, where the run has several.

    Raises:
      UsageError: there is no such run, replica or checkpoint, the run has another task or a tokeniser of another size,
        or a prompt is empty or longer than the context.
    """
    if not prompts:
        raise UsageError("There is no prompt; give at least one, and --samples of at least 1.")
    config = trained.config_of(directory, "language_modelling", "generate text")
    tokeniser = tokenisers.loads(workdir.read_file(directory, TOKENISER))
    encoded = _encoded(prompts, tokeniser, config.data.context)
    model = config.model.build(tokeniser.size, config.data.context, dtype=jnp.dtype(config.train.precision))
    _, params = trained.load_params(
        directory,
        step,
        config,
        lambda key: model.init(key, jnp.zeros((1, 1), jnp.int32))["params"],
        {"embed": (TOKENISER, tokeniser.size)},
        replica,
    )
    end = tokeniser.special["end"] if config.data.end_token else -1
    rows = generate(model, params, encoded, tokens, sampling, trained.key_of(seed), end)
    longest = max(map(len, encoded)) + tokens
    if longest > config.data.context:
        print(f"{longest} tokens are more than the {config.data.context} of training: expect less.", file=sys.stderr)
    return [tokeniser.decode(row) for row in rows]


def _encoded(prompts: Sequence[str], tokeniser: tokenisers.Tokeniser, context: int) -> list[np.ndarray]:
    try:
        encoded = tokeniser.encode_batch([prompt.encode().decode() for prompt in prompts])
    except UnicodeEncodeError as error:  # a shell passes on bytes of other encodings as surrogates
        raise UsageError(f"The prompt {error.object[:30]!r} is no text in UTF-8; type it in that encoding.") from error
    for prompt, ids in zip(prompts, encoded, strict=True):
        if not len(ids):
            raise UsageError(f"The prompt {prompt!r} has no token; say what is to be continued.")
        if len(ids) > context:
            raise UsageError(
                f"The prompt {prompt[:30]!r}... has {len(ids)} tokens, but the model was trained on {context} at a "
                "time; shorten it."
            )
    return encoded


@cli.program(
    __doc__,
    cli.flag("--workdir", type=Path, required=True, help="the run's folder"),
    cli.flag("--prompt", action="append", required=True, help="text to continue; may be given again"),
    cli.flag("--tokens", type=int, default=100, help="number of tokens to add"),
    cli.flag("--temperature", type=float, default=1.0, help="of the draws; 0 takes the most probable token"),
    cli.flag("--top-k", type=int, default=0, help="draw from the N most probable tokens; 0 is all"),
    cli.flag("--top-p", type=float, default=1.0, help="draw from the most probable tokens of this total probability"),
    cli.flag("--samples", type=int, default=1, help="number of continuations of each prompt"),
    cli.flag("--seed", type=int, default=0, help="seed of the draws"),
    cli.flag("--step", default="best", help="best, last or the number of a step with a checkpoint"),
    cli.flag("--replica", type=int, default=0, help="number of a replica"),
)
def main(flags: argparse.Namespace) -> None:
    """Prints the continuations."""
    compilation.keep_programs()
    prompts = [prompt for prompt in flags.prompt for _ in range(flags.samples)]
    sampling = Sampling(flags.temperature, flags.top_k, flags.top_p)
    texts = continuations(flags.workdir, prompts, flags.tokens, sampling, flags.seed, flags.step, flags.replica)
    print("\n\n".join(texts))


if __name__ == "__main__":
    sys.exit(main())
