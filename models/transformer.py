"""The base of all Transformers: the fields of their configs, and their blocks."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from attention import operations, specs
from attention.activations import ACTIVATIONS
from attention.defining.definition import knows_absolute_positions
from attention.errors import UsageError
from attention.kernels import ring
from attention.kernels.call import parse_implementation
from attention.operations import Cost
from attention.scores.rotary import Rotary
from attention.types import Count, Multiple, Names, Positive, Rate, Size, at_most
from models.config import ModelConfig
from models.fields import LAYERS, field
from models.layers.blocks import NORMS, Block, Mlp
from models.layers.cache import Cache
from models.layers.multi_head import MultiHeadAttention
from models.layers.norms import NORM_TYPES
from models.layers.positions import ADDED, rotary_layers
from models.mechanisms import Mechanism, resolve

POLICIES = jax.checkpoint_policies
PRETRAINED = "Weights to start from: a folder, or a name on the Hugging Face hub; '' starts from random ones."
BLOCKS: dict[str, type[Block]] = {  # a scan takes blocks of one class, so each policy has its own
    "none": Block,
    "block": nn.remat(Block, policy=POLICIES.nothing_saveable, static_argnums=(3,)),
    "dots": nn.remat(Block, policy=POLICIES.dots_with_no_batch_dims_saveable, static_argnums=(3,)),
}


@dataclasses.dataclass(frozen=True)
class TransformerConfig(ModelConfig):
    """The config of a stack of blocks of attention and MLP.

    Attributes:
      mechanisms: The mechanism of each layer, by the spec string's field.
      implementations: The implementation of each layer of the longest stack; a shorter stack takes the first ones.
      rotaries: Likewise their rotary positions, None for layers without.
    """

    mechanisms: ClassVar[dict[str, tuple[Mechanism, ...]]]  # these three are no fields, but follow from them
    implementations: ClassVar[tuple[str, ...]]
    rotaries: ClassVar[tuple[Rotary | None, ...]]

    name: str = field("", "Name of the model.")
    attention: str = field("dot_product", "Spec string of the mechanism, see `models.mechanisms`.")
    implementation: str = field(
        "auto",
        "How attention is computed: `auto`, `xla`, `chunked`, `cudnn`, `pallas` or `reference`; `chunked(128, 256)` "
        "takes tiles of 128 queries and 256 keys. `pallas|cudnn` gives one to each layer of every stack; the last "
        "repeats.",
        may_change=True,
    )
    depth: Annotated[Count, at_most(LAYERS)] = field(4, "Number of blocks.")
    width: Annotated[Count, Multiple("heads")] = field(64, "D, the width of hidden states.", matched="parameters")
    heads: Count = field(4, "N, the number of heads.")
    mlp: Size = field(128, "Hidden units of each block's MLP; 0 leaves the MLPs out.", matched="parameters")
    norm: Annotated[str, Names(NORMS)] = field(
        "pre",
        "Place of the norms: before each layer (`pre`), after each residual (`post`), or before and after each layer "
        "(`sandwich`).",
    )
    norm_epsilon: Positive = field(1e-6, "The norms' ε.")
    positions: Annotated[str, Names(ADDED)] = field("learned", "Position encoding.")
    activation: Annotated[str, Names(ACTIVATIONS)] = field("gelu", "Activation of the MLPs; `gelu` is the exact form.")
    embedding_dropout: Rate = field(0.0, "Rate on the embeddings.")
    dropout: Rate = field(0.1, "Rate on the attention layers' outputs and both layers of each MLP.")
    attention_dropout: Rate = field(0.1, "Rate on the attention weights.")
    attention_bias: bool = field(True, "Whether linear projections of queries, keys, values and outputs have biases.")
    scan: bool = field(
        False,
        "Whether neighbouring blocks with one mechanism are compiled once and scanned; only dropout's draws change.",
        may_change=True,
    )
    remat: Annotated[str, Names(BLOCKS)] = field(
        "none",
        "What the backward pass computes again: nothing (`none`), every `block`, or all but matrix products (`dots`).",
        may_change=True,
    )

    norm_type: ClassVar[str] = "layer"
    gated: ClassVar[bool] = False
    mlp_bias: ClassVar[bool] = True
    head: ClassVar[int] = 0
    norm_first: ClassVar[bool] = True

    STACKS: ClassVar[Mapping[str, str]] = {"attention": "depth"}  # a spec string's field, and that of its depth
    PLACES: ClassVar[Mapping[str, str]] = {"attention": "block_{}/attention"}  # the paths of its layers' parameters
    DROPS_HIDDEN: ClassVar[bool] = True  # whether `dropout` also applies to the hidden units of MLPs

    def __post_init__(self):
        super().__post_init__()
        self._read_layers()

    def _read_layers(self) -> None:
        deepest = max(getattr(self, depth) for depth in self.STACKS.values())
        implementations = specs.texts(self.implementation, "layer", deepest)
        for item in implementations:
            parse_implementation(item, "model.implementation")
        vars(self).update(
            mechanisms={spec: resolve(getattr(self, spec), getattr(self, size)) for spec, size in self.STACKS.items()},
            implementations=implementations,
            rotaries=rotary_layers(self.positions, deepest),
        )

    def attentions(self) -> dict[str, str]:
        return {spec: getattr(self, spec) for spec in self.STACKS}

    def remarks(self) -> list[str]:
        """Names the mechanisms that depend on absolute positions although positions are rotary."""
        layers = [pair for rows in self.mechanisms.values() for pair in zip(rows, self.rotaries, strict=False)]
        absolute = sorted({row.name for row, turns in layers if turns and knows_absolute_positions(row.score)})
        if not absolute:
            return []
        return [
            f"With rotary positions, {', '.join(absolute)} depends on where a sequence starts: queries and keys do not "
            "meet in products q·k alone."
        ]

    def by_path(self) -> dict[str, Mechanism]:
        """Lists the mechanism of each attention layer by the path of its parameters."""
        return {
            place.format(layer): mechanism
            for spec, place in self.PLACES.items()
            for layer, mechanism in enumerate(self.mechanisms[spec])
        }

    @property
    def has_own_loss(self) -> bool:
        return any(mechanism.score.traits.own_loss for mechanism in self.by_path().values())

    def split_by_tensor(self) -> dict[str, int]:
        return {"model.heads": self.heads, "model.mlp": self.mlp}

    def why_whole(self) -> str:
        for spec, mechanisms in self.mechanisms.items():
            for mechanism in mechanisms:
                if mechanism.align is not None or not mechanism.score.splits_tokens:
                    return f"model.{spec} has {mechanism.name}, which needs whole sequences on each device"
        other = [name for name in self.implementations if parse_implementation(name)[0] not in ring.NAMES]
        return f"model.implementation has {other[0]!r}, and only auto and chunked can be shared" if other else ""

    def norm_layer(self, dtype: DTypeLike, name: str | None = None) -> nn.Module:
        """Makes a norm of the blocks' kind, as a submodule of the module that calls it."""
        return NORM_TYPES[self.norm_type](self.norm_epsilon, dtype=dtype, name=name)

    def attention_layers(
        self, length: int, dtype: DTypeLike = jnp.float32, stack: str = "attention"
    ) -> list[MultiHeadAttention]:
        """Makes the attention layer of each block of a stack, unbound.

        Args:
          length: ℓ, the longest sequence, for parameters of fixed length.
          dtype: Compute dtype.
          stack: The field of the stack's spec string.
        """
        rows = zip(self.mechanisms[stack], self.implementations, self.rotaries, strict=False)
        return [
            MultiHeadAttention(
                mechanism=mechanism,
                heads=self.heads,
                length=length,
                implementation=implementation,
                dropout=self.attention_dropout,
                bias=self.attention_bias,
                epsilon=self.norm_epsilon,
                rotary=rotary,
                head=self.head,
                dtype=dtype,
                layer=layer,
                depth=len(self.mechanisms[stack]),
                parent=None,
            )
            for layer, (mechanism, implementation, rotary) in enumerate(rows)
        ]

    def cost_of_blocks(self, length: int, stack: str = "attention") -> Cost:
        """Counts the cost of one forward pass of a stack's attention layers and MLPs over one sequence."""
        mlp = operations.mlp(length, self.width, self.mlp, self.width)
        if self.gated:
            mlp += operations.linear(length, self.width, self.mlp) + Cost(0, length * self.mlp)
        layers = self.mechanisms[stack]
        attention = sum((layer.cost(length, self.width, self.heads, head=self.head) for layer in layers), Cost())
        return attention + mlp * (len(layers) if self.mlp else 0)

    def init_caches(
        self, batch: int, max_length: int, length: int, dtype: DTypeLike, stack: str = "attention"
    ) -> tuple[Cache, ...]:
        """Makes an empty decode cache for each layer of a stack; see `attention_layers` for `length` and `stack`.

        Args:
          batch: B, the number of sequences.
          max_length: Most tokens that the caches will hold, including the prompt.

        Raises:
          UsageError: there are more tokens than learned positions.
        """
        if self.positions == "learned" and max_length > length:
            raise UsageError(
                f"{max_length} tokens were asked for, but positions were learned for {length}; "
                "generate fewer, or train with a longer context."
            )
        layers = self.attention_layers(length, dtype, stack)
        return tuple(layer.init_cache(batch, max_length, self.width) for layer in layers)

    def blocks(
        self,
        length: int,
        dtype: DTypeLike = jnp.float32,
        stack: str = "attention",
        cross: Sequence[MultiHeadAttention] = (),
    ) -> list[Block]:
        """Makes the blocks of a stack, as submodules of the module that calls it; see `attention_layers`.

        Each block also gets a layer of `cross`, if there are any.
        """
        layers = itertools.zip_longest(self.attention_layers(length, dtype, stack), cross)
        return [
            BLOCKS[self.remat](
                attention=attention,
                mlp=self._mlp(dtype) if self.mlp else None,
                norm=self.norm,
                epsilon=self.norm_epsilon,
                dropout=self.dropout,
                dtype=dtype,
                cross=other,
                norm_type=self.norm_type,
                bare=attention.layer == 0 and not self.norm_first,
                name=self.PLACES[stack].format(attention.layer).partition("/")[0],
            )
            for attention, other in layers
        ]

    def _mlp(self, dtype: DTypeLike) -> Mlp:
        rates = self.dropout * self.DROPS_HIDDEN, self.dropout
        return Mlp(self.mlp, self.activation, *rates, dtype, self.gated, self.mlp_bias, parent=None)


@dataclasses.dataclass(frozen=True)
class BlockConfig(TransformerConfig):
    """The config of blocks with the norms, MLPs and heads of later models too, such as Llama and T5."""

    norm_type: Annotated[str, Names(NORM_TYPES)] = field(
        "layer", "Kind of the norms; `rms_offset` multiplies by 1 + w, as Gemma does."
    )
    gated: bool = field(
        False, "Whether MLPs have a third layer, which is activated and multiplies the first: SwiGLU with `swish`."
    )
    mlp_bias: bool = field(True, "Whether the MLPs have biases.")
    head: Size = field(0, "H, the width of a head; 0 is D/N.")
