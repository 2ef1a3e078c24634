"""Speed of whole models: training steps of papers' models and a Llama, compared with PyTorch, and forward passes.

A step is that of `train.main` in bfloat16, with plain AdamW and without dropout, on random inputs. The models are
DiGiugno's GPT and ViT (his Tables 6 to 8), Hosseini's ViTs (Tables 1, 4 and 7) and the Llama of `benchmarks.llama`.
PyTorch trains the same weights with autocast, both eager and compiled with the loss.
"""

import dataclasses
import functools
import importlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import inference, layers, llama
from benchmarks.device import about, peers, timing
from benchmarks.device.core import planned
from benchmarks.device.items import Item, Row, need
from benchmarks.train_step import INPUTS, peer_of
from train import loading
from train.config.schema import Config
from train.dry_run.dry import DryRun
from train.mesh import feeds
from train.tasks import Task

BENCH, EAGER, COMPILED = "bench", "PyTorch", "PyTorch compiled"
BATCH, TOY_BATCH = 256, 2  # images in a forward pass, and examples at toy sizes
WHILE, MOST = 1.0, 100  # seconds for consecutive steps, and their highest number
STEADY = {"optimizer.schedule": "constant", "optimizer.warmup": "0 steps", "optimizer.clip": "0.0"}
SMALL = {"model.depth": "2", "model.width": "32", "model.heads": "8", "model.mlp": "24"}
SHORT = {"data.context": "8"}
SIDE = {f"data.{when}_transforms": "resize(size=16)" for when in ("train", "eval")}
LLAMA_FILE, _, GROUPED = llama.CONFIG.partition(":")
WORDS = {"data.tokeniser": "wordpiece(size=32000)", "data.context": "1024"}
UNITS = {"tokens": "tokens", "examples": "images"}


@dataclasses.dataclass(frozen=True)
class Trained:
    """A model to train.

    Attributes:
      file: Its config.
      specs: Its mechanisms.
      batches: Numbers of examples in a step.
      sizes: Overrides of the config's fields.
      toy: Further overrides at toy sizes.
      twin: Beginning of its module's name in `benchmarks.peers`; '' for none.
      package: A package that the twin needs besides PyTorch.
    """

    file: str
    specs: tuple[str, ...]
    batches: tuple[int, ...]
    sizes: Mapping[str, str]
    toy: Mapping[str, str]
    twin: str = ""
    package: str = "torch"

    @property
    def name(self) -> str:
        """Its name in results."""
        return "llama" if self.file == LLAMA_FILE else self.file.removeprefix("configs/").removesuffix(".py")

    def config(self, spec: str, batch: int, tiny: bool) -> Config:
        """Resolves the config of a mechanism and a batch."""
        sizes = {"data.batch_size": str(batch), "train.precision": "bfloat16"}
        sizes |= layers.PLAIN | STEADY | self.sizes | (SMALL | self.toy if tiny else {})
        return loading.resolve(f"{self.file}:{spec}", sizes)[0]


DIGIUGNO = ("dot_product", *(f"neural(dim={dim})|dot_product" for dim in ("2", "16", "None")), "neural(dim=2)")
LLAMA = Trained(
    LLAMA_FILE, (GROUPED,), (16,), llama.SIZES | WORDS, SHORT | {"data.tokeniser": "bytes"}, "llama", "transformers"
)
MODELS = (
    Trained(
        layers.CONFIGS["gpt"], DIGIUGNO, (16,), {}, SHORT | {"data.eval_stride": "0", "data.vocabulary": "11"}, "gpt"
    ),
    Trained(layers.CONFIGS["vit"], ("dot_product", DIGIUGNO[1], DIGIUGNO[-1]), (32,), {}, SIDE, "vit"),
    LLAMA,
    Trained("configs/vit_cifar100.py", inference.MECHANISMS, (32, 256), {}, {"model.patch": "8"}, "vit"),
)
Images = Callable[[Config, int], tuple[Any, tuple[jax.Array, ...]]]
FORWARD: dict[str, Images] = {
    "vit_imagenet": functools.partial(inference.images, side=112, channels=3, classes=1000),
    "vit_cifar100": inference.TASKS["vit_cifar100"],
    "vit_mnist": inference.TASKS["vit_mnist"],
}


def items(tiny: bool) -> list[Item]:
    """Lists our steps model by model, forward passes, and steps in PyTorch."""
    sized = [(model, batch, tiny) for model in MODELS for batch in ((TOY_BATCH,) if tiny else model.batches)]
    known = [_item("step", "jax", spec, prepare_step, given) for given in sized for spec in given[0].specs]
    for network in FORWARD:
        given = network, TOY_BATCH if tiny else BATCH, tiny
        known += [_item("forward", "jax", spec, prepare_forward, given) for spec in inference.MECHANISMS]
    twins = [given for given in sized if given[0].twin]
    return known + [_item("step", "torch", way, prepare_torch, given) for given in twins for way in (EAGER, COMPILED)]


def _item(what: str, stack: str, variant: str, prepare: Callable, given: tuple[Any, int, bool]) -> Item:
    """Makes an item; `prepare` takes the variant, a mechanism or one of PyTorch's ways, and what is given."""
    model, batch, _ = given
    name = f"models, {what}, {getattr(model, 'name', model)}, {variant}, batch {batch}"
    return Item(name, "models", stack, functools.partial(prepare, variant, *given))


def prepare_step(spec: str, model: Trained, batch: int, tiny: bool) -> Callable[[], Row]:
    """Compiles a step and the initialisation of its state, and makes a function that measures steps."""
    dry = DryRun.of(model.config(spec, batch, tiny), jax.devices()[:1])
    setup = dry.setup
    with feeds.HostFeed(setup.replicas, setup.task.sources["train"]) as feed, jax.set_mesh(setup.replicas.mesh):
        program, shardings = setup.program(feed), setup.replicas.shardings(setup.shapes)
        compiled = program.compile(dry.state, dry.batch)
        init = jax.jit(lambda: setup.step.init(setup.task.init(jax.random.key(0))), out_shardings=shardings)
        init = init.lower().compile()

    def measured() -> Row:
        state = init()
        given = {name: jax.device_put(x, dry.batch[name].sharding) for name, x in drawn(dry).items()}

        def step() -> Any:
            nonlocal state
            state, report = program(state, given, 1)
            return report

        of = {"model": model.name, "attention": spec, "by": BENCH} | planned(compiled) | about.made_by("auto")
        return of_calls(step, "jax", batch * setup.task.units_per_example) | of_work(setup.task, batch) | of

    return measured


def prepare_torch(stack: str, model: Trained, batch: int, tiny: bool) -> Callable[[], Row]:
    """Takes the first steps of a twin in PyTorch, which compile, and makes a function that measures more steps."""
    for package in ("torch", model.package):
        need(package, f"{model.name} in {stack}")
    import torch

    dry = DryRun.of(model.config(model.specs[0], batch, tiny), jax.devices()[:1])
    task, device = dry.setup.task, "cuda" if torch.cuda.is_available() else "cpu"
    before = peers.held()
    take = _twins_step(model, dry, device, stack == COMPILED)
    of = {"model": model.name, "attention": model.specs[0], "by": stack} | _allocated(take, before)
    return lambda: of_calls(take, "torch", batch * task.units_per_example) | of_work(task, batch) | of


def _twins_step(model: Trained, dry: DryRun, device: str, compiled: bool) -> Callable[[], Any]:
    """Makes a step of the twin on a batch that is already on the device."""
    import torch

    from benchmarks.peers import torch_layers

    task, rates, arrays = dry.setup.task, dry.setup.config.optimizer, drawn(dry)
    params = jax.device_get(jax.jit(task.init)(jax.random.key(0)))
    twin = importlib.import_module(peer_of(model.twin, "torch")).twin(params, task.model).to(device)
    step = torch_layers.step_in_bfloat16(twin, rates.learning_rate, rates.weight_decay, compiled)
    inputs, labels = (torch.as_tensor(arrays[name][0]).to(device) for name in INPUTS[task.model.config.name])
    return functools.partial(step, inputs, labels.long())


def _allocated(take: Callable[[], Any], before: int) -> Row:
    """Takes two steps, the first of which compiles, and reads the peak of bytes in the second, beyond those before."""
    take()
    peers.held()
    take()
    return peers.allocated(before)


def prepare_forward(spec: str, name: str, batch: int, tiny: bool) -> Callable[[], Row]:
    """Compiles a forward pass, and makes a function that measures it."""
    toy = SMALL | {"model.patch": "8"} if tiny else {}
    config = loading.resolve(f"configs/{name}.py:{spec}", {"train.precision": "bfloat16"} | toy)[0]
    network, images = FORWARD[name](config, batch)
    shapes = jax.eval_shape(network.init, jax.random.key(0), *images)
    compiled = jax.jit(network.apply).lower(shapes, *images).compile()
    init = jax.jit(network.init).lower(jax.random.key(0), *images).compile()
    cost = config.model.cost(images[0].shape[1:], network.classes)

    def measured() -> Row:
        params = init(jax.random.key(0), *images)
        row = of_calls(lambda: compiled(params, *images), "jax", batch)
        of = {"model": name, "attention": spec, "by": BENCH, "batch": batch, "unit": "images"}
        return row | of | {"flops": batch * cost.flops} | planned(compiled) | about.made_by("auto")

    return measured


def drawn(dry: DryRun) -> dict[str, np.ndarray]:
    """Draws the batch of a step, with random tokens, classes and images, and weights of 1."""
    draw, model = np.random.default_rng(0), dry.setup.task.model
    many = model.vocabulary if dry.setup.task.unit == "tokens" else model.classes

    def array(name: str, like: jax.ShapeDtypeStruct) -> np.ndarray:
        if jnp.issubdtype(like.dtype, jnp.integer):
            return draw.integers(0, many, like.shape).astype(like.dtype)
        return np.ones(like.shape, like.dtype) if name == "weight" else draw.standard_normal(like.shape, like.dtype)

    return {name: array(name, like) for name, like in dry.batch.items()}


def of_calls(call: timing.Call, stack: str, units: int) -> Row:
    """Measures a call by the device's work, and consecutive calls by the host's clock."""
    row = timing.measured(call, stack)
    number = max(timing.AT_LEAST, min(MOST, round(WHILE / row["seconds"])))
    started = time.perf_counter()
    for _ in range(number):
        out = call()
    timing.WAITS[stack](out)
    wall = (time.perf_counter() - started) / number
    return row | {"wall_seconds": wall, "units_per_second": units / wall}


def of_work(task: Task, batch: int) -> Row:
    """Describes the work of a training step."""
    return {"batch": batch, "unit": UNITS[task.unit], "flops": batch * task.cost().training}
