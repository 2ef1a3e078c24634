"""Let a trained language model continue prompts.

python -m train.generate --workdir=runs/gpt --prompt="The return statement" --tokens=100 --temperature=0.8 --top-p=0.95
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from attention.errors import UsageError
from models.gpt import GPT
from train import configs, workdir
from train.checkpoints import Checkpoints
from train.config import Config
from train.data import tokenisers
from train.decoding import Sampling, generate
from train.tasks import language_modelling


def continuations(
    directory: Path, prompts: Sequence[str], tokens: int, sampling: Sampling, seed: int = 0, step: str = "best"
) -> list[str]:
    """Each prompt as the model of a run continues it.

    Args:
      directory: The work directory of a run of the task `language_modelling`.
      prompts: Texts of at least a token each.
      tokens: How many to add.
      sampling: How they are chosen.
      seed: Of the draws.
      step: `best` (needs a finished run), `last` or a step that has a checkpoint.

    Raises:
      UsageError: no such run or checkpoint, another task, or a prompt that is empty or longer than the context.
    """
    config = configs.validate(workdir.read_config(directory))
    if config.task != "language_modelling":
        raise UsageError(f"{directory} is a run of {config.task}; only models of language_modelling generate text.")
    tokeniser = tokenisers.loads(workdir.read_file(directory, "tokeniser.json"))
    encoded = [tokeniser.encode(prompt) for prompt in prompts]
    _check_prompts(prompts, encoded, config.data.context)
    longest = max(map(len, encoded)) + tokens
    model = language_modelling.build(config, tokeniser.size)
    params = _params(directory, step, config, model)
    if longest > config.data.context:
        print(f"{longest} tokens are more than the {config.data.context} of training: expect less.", file=sys.stderr)
    end = tokeniser.special["end"] if config.data.end_token else -1
    rows = generate(model, params, encoded, tokens, sampling, jax.random.key(seed), end)
    return [tokeniser.decode(row) for row in rows]


def _check_prompts(prompts: Sequence[str], encoded: Sequence[np.ndarray], context: int) -> None:
    for prompt, ids in zip(prompts, encoded, strict=True):
        if not len(ids):
            raise UsageError(f"The prompt {prompt!r} has no token; say what is to be continued.")
        if len(ids) > context:
            raise UsageError(
                f"The prompt {prompt[:30]!r}... has {len(ids)} tokens, but the model was trained on {context} at a "
                "time; shorten it."
            )


def _params(directory: Path, step: str, config: Config, model: GPT) -> dict:
    """On the first device."""
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    shapes = jax.eval_shape(model.init, jax.random.key(0), np.zeros((1, 1), np.int32))["params"]
    abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here), shapes)
    with Checkpoints(directory, config.train.keep) as checkpoints:
        chosen = checkpoints.choose(step, lambda: workdir.read_result(directory)["best_step"])
        return checkpoints.load_params(chosen, abstract, averaged=config.train.ema > 0)


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m train.generate", description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", type=Path, required=True, help="the run's folder")
    parser.add_argument("--prompt", action="append", required=True, help="what to continue; may be given again")
    parser.add_argument("--tokens", type=int, default=100, help="how many to add")
    parser.add_argument("--temperature", type=float, default=1.0, help="0 is greedy")
    parser.add_argument("--top-k", type=int, default=0, help="draw from so many tokens; 0 is all")
    parser.add_argument("--top-p", type=float, default=1.0, help="draw from the likeliest of this probability")
    parser.add_argument("--samples", type=int, default=1, help="continuations of each prompt")
    parser.add_argument("--seed", type=int, default=0, help="of the draws")
    parser.add_argument("--step", default="best", help="best, last or a step that has a checkpoint")
    flags = parser.parse_args(arguments)
    prompts = [prompt for prompt in flags.prompt for _ in range(flags.samples)]
    try:
        sampling = Sampling(flags.temperature, flags.top_k, flags.top_p)
        texts = continuations(flags.workdir, prompts, flags.tokens, sampling, flags.seed, flags.step)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n\n".join(texts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
