"""The base of all Transformers: the fields of their configs, and their blocks."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from attention import operations, specs
from attention.activations import ACTIVATIONS
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
PRETRAINED = "Folder or name on the Hugging Face hub of weights to start from; '' starts from random ones."
BLOCKS: dict[str, type[Block]] = {  # one class for each policy, because a scan takes blocks of one class
    "none": Block,
    "block": nn.remat(Block, policy=POLICIES.nothing_saveable, static_argnums=(3,)),
    "dots": nn.remat(Block, policy=POLICIES.dots_with_no_batch_dims_saveable, static_argnums=(3,)),
}


@dataclasses.dataclass(frozen=True)
class TransformerConfig(ModelConfig):
    """The config of a stack of blocks of attention and MLP."""

    name: str = field("", "Which model it is.")
    attention: str = field("dot_product", "Mechanism spec string, see `models.mechanisms`.")
    implementation: str = field(
        "auto",
        "How attention is computed: `auto`, `xla`, `chunked`, `cudnn`, `pallas` or `reference`; `chunked(128, 256)` is "
        "in tiles of 128 queries and 256 keys. `pallas|cudnn` gives one to each layer, the last repeating, in all "
        "attentions of the model alike.",
        may_change=True,
    )
    depth: Annotated[Count, at_most(LAYERS)] = field(4, "Number of blocks.")
    width: Annotated[Count, Multiple("heads")] = field(64, "D.", matched="parameters")
    heads: Count = field(4, "N.")
    mlp: Size = field(128, "Hidden units of each block's MLP; 0 is none.", matched="parameters")
    norm: Annotated[str, Names(NORMS)] = field(
        "pre",
        "Where norms are: before each layer (`pre`), after each residual (`post`), or before and after each layer "
        "(`sandwich`).",
    )
    norm_epsilon: Positive = field(1e-6, "The norms' ε.")
    positions: Annotated[str, Names(ADDED)] = field("learned", "How tokens know where they are.")
    activation: Annotated[str, Names(ACTIVATIONS)] = field("gelu", "The MLP's; `gelu` is the exact one.")
    embedding_dropout: Rate = field(0.0, "Rate on the embeddings.")
    dropout: Rate = field(0.1, "Rate on the attention layers' outputs and both layers of each MLP.")
    attention_dropout: Rate = field(0.1, "Rate on the attention weights.")
    attention_bias: bool = field(True, "Whether linear projections of queries, keys, values and outputs have biases.")
    scan: bool = field(
        False,
        "Whether runs of blocks with one mechanism are compiled once and scanned, the same function with other draws.",
        may_change=True,
    )
    remat: Annotated[str, Names(BLOCKS)] = field(
        "none",
        "What the backward pass computes again: `none`, every `block`, or all but matrix products (`dots`).",
        may_change=True,
    )

    norm_type: ClassVar[str] = "layer"
    gated: ClassVar[bool] = False
    mlp_bias: ClassVar[bool] = True
    head: ClassVar[int] = 0
    norm_first: ClassVar[bool] = True

    STACKS: ClassVar[Mapping[str, str]] = {"attention": "depth"}  # fields of spec strings and of their depths
    PLACES: ClassVar[Mapping[str, str]] = {"attention": "block_{}/attention"}  # paths of their layers' parameters
    DROPS_HIDDEN: ClassVar[bool] = True  # whether `dropout` applies to the hidden units of MLPs too

    def __post_init__(self):
        super().__post_init__()
        _ = self.implementations, self.mechanisms, self.rotaries  # to raise their errors now

    @functools.cached_property
    def mechanisms(self) -> dict[str, tuple[Mechanism, ...]]:
        """Returns the mechanism of each layer, by the fields of the spec strings.

        Raises:
          UsageError: a name or option is unknown, or there are more items than layers.
        """
        return {spec: resolve(getattr(self, spec), getattr(self, depth)) for spec, depth in self.STACKS.items()}

    @functools.cached_property
    def implementations(self) -> tuple[str, ...]:
        """Returns the implementation of each layer of the longest stack; a shorter stack takes the first ones.

        Raises:
          UsageError: a name is unknown, or there are more names than layers.
        """
        items = [item.strip() for item in self.implementation.split("|")]
        for item in items:
            parse_implementation(item, "model.implementation")
        return specs.spread(items, self.implementation, "layer", self._deepest)

    @functools.cached_property
    def rotaries(self) -> tuple[Rotary | None, ...]:
        """Returns the rotary positions of each layer, None for those without.

        Raises:
          UsageError: the positions are unknown, or there are more items than layers.
        """
        return rotary_layers(self.positions, self._deepest)

    @property
    def _deepest(self) -> int:
        return max(getattr(self, depth) for depth in self.STACKS.values())

    def attentions(self) -> dict[str, str]:
        """Returns the spec strings by field name."""
        return {spec: getattr(self, spec) for spec in self.STACKS}

    def by_path(self) -> dict[str, Mechanism]:
        """Returns the mechanism of each attention layer by the path of its parameters."""
        return {
            place.format(layer): mechanism
            for spec, place in self.PLACES.items()
            for layer, mechanism in enumerate(self.mechanisms[spec])
        }

    def split_by_tensor(self) -> dict[str, int]:
        """Returns the sizes that the mesh axis `tensor` splits, by field name."""
        return {"model.heads": self.heads, "model.mlp": self.mlp}

    def why_whole(self) -> str:
        """Returns why devices cannot share the tokens of a sequence, as part of a sentence; '' if they can."""
        for spec, mechanisms in self.mechanisms.items():
            for mechanism in mechanisms:
                if mechanism.align is not None or not mechanism.score.splits_tokens:
                    return f"model.{spec} has {mechanism.name}, which needs whole sequences on each device"
        other = [name for name in self.implementations if parse_implementation(name)[0] not in ring.NAMES]
        return f"model.implementation has {other[0]!r}, and only auto and chunked can be shared" if other else ""

    def attention_layers(
        self, length: int, dtype: DTypeLike = jnp.float32, stack: str = "attention"
    ) -> list[MultiHeadAttention]:
        """Returns the attention layer of each block of a stack, unbound, built for at most `length` tokens.

        Args:
          length: ℓ.
          dtype: Compute dtype.
          stack: The field of the stack's spec string.
        """
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
            for layer, (mechanism, implementation, rotary) in enumerate(
                zip(self.mechanisms[stack], self.implementations, self.rotaries, strict=False)
            )
        ]

    def cost_of_blocks(self, length: int, stack: str = "attention") -> Cost:
        """Returns the cost of one forward pass of a stack's attention layers and MLPs over one sequence."""
        mlp = operations.mlp(length, self.width, self.mlp, self.width)
        if self.gated:
            mlp += operations.linear(length, self.width, self.mlp) + operations.Cost(0, length * self.mlp)
        layers = self.mechanisms[stack]
        rest = mlp if self.mlp else Cost()
        return sum((layer.cost(length, self.width, self.heads, head=self.head) + rest for layer in layers), Cost())

    def init_caches(
        self, layers: Sequence[MultiHeadAttention], batch: int, max_length: int, longest: int
    ) -> tuple[Cache, ...]:
        """Returns an empty decode cache for each layer.

        Args:
          layers: The self-attention layers.
          batch: B, the number of sequences.
          max_length: The most tokens that the caches will hold.
          longest: The number of learned positions.

        Raises:
          UsageError: there are more tokens than learned positions.
        """
        if self.positions == "learned" and max_length > longest:
            raise UsageError(
                f"{max_length} tokens were asked for, but positions were learned for {longest}; "
                "generate fewer, or train with a longer context."
            )
        return tuple(layer.init_cache(batch, max_length, self.width) for layer in layers)

    def blocks(self, length: int, dtype: DTypeLike = jnp.float32) -> list[Block]:
        """Returns the blocks `block_0` and so on, as submodules of the module that calls it."""
        return [
            self.block(attention, dtype, name=f"block_{layer}")
            for layer, attention in enumerate(self.attention_layers(length, dtype))
        ]

    def block(
        self,
        attention: MultiHeadAttention,
        dtype: DTypeLike,
        cross: MultiHeadAttention | None = None,
        name: str | None = None,
    ) -> Block:
        """Returns one block of the given layers, as a submodule of the module that calls it."""
        rates = self.dropout * self.DROPS_HIDDEN, self.dropout
        mlp = Mlp(self.mlp, self.activation, *rates, dtype, self.gated, self.mlp_bias, parent=None)
        return BLOCKS[self.remat](
            attention=attention,
            mlp=mlp if self.mlp else None,
            norm=self.norm,
            epsilon=self.norm_epsilon,
            dropout=self.dropout,
            dtype=dtype,
            cross=cross,
            norm_type=self.norm_type,
            bare=attention.layer == 0 and not self.norm_first,
            name=name,
        )


@dataclasses.dataclass(frozen=True)
class BlockConfig(TransformerConfig):
    """The config of blocks whose norms, MLPs and heads may be those of later models, such as Llama and T5."""

    norm_type: Annotated[str, Names(NORM_TYPES)] = field(
        "layer", "The kind of norms; `rms_offset` multiplies by 1 + w, as Gemma does."
    )
    gated: bool = field(
        False, "Whether a further layer of each MLP is activated and multiplies the first: SwiGLU with `swish`."
    )
    mlp_bias: bool = field(True, "Whether the MLPs have biases.")
    head: Size = field(0, "H, the width of a head; 0 is D/N.")
