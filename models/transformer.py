"""What Transformers share: the fields of their configs, and their blocks."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from attention.activations import ACTIVATIONS
from attention.errors import UsageError, check_choice
from attention.kernels.call import parse_implementation
from models import mechanisms, specs
from models.layers.blocks import NORMS, Block, Mlp
from models.layers.cache import Cache
from models.layers.multi_head import MultiHeadAttention
from models.layers.positions import ADDED

POLICIES = jax.checkpoint_policies
BLOCKS: dict[str, type[Block]] = {  # one class each: a scan takes blocks that are equal
    "none": Block,
    "block": nn.remat(Block, policy=POLICIES.nothing_saveable, static_argnums=(3,)),
    "dots": nn.remat(Block, policy=POLICIES.dots_with_no_batch_dims_saveable, static_argnums=(3,)),
}


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """A stack of blocks of attention and MLP.

    Attributes:
      name: Which model it is.
      attention: Mechanism spec string, see `models.mechanisms`.
      implementation: How attention is computed: `auto`, `xla`, `chunked`, `cudnn`, `pallas` or `reference`;
        `chunked(128, 256)` is in tiles of 128 queries and 256 keys. `pallas|cudnn` gives one to each layer, the last
        repeating, in all attentions of the model alike.
      depth: Number of blocks.
      width: D, a multiple of `heads`.
      heads: N.
      mlp: Hidden units of each block's MLP.
      norm: LayerNorm before (`pre`) or after (`post`) each residual.
      norm_epsilon: LayerNorm's ε.
      positions: `learned`, `sinusoidal` or `none`, and in models of texts `rotary`.
      activation: The MLP's: `gelu` (exact), `gelu_tanh`, `relu` or `swish`.
      embedding_dropout: Rate on the embeddings.
      dropout: Rate on the attention layers' outputs and both layers of each MLP.
      attention_dropout: Rate on the attention weights.
      attention_bias: Whether linear projections of queries, keys, values and outputs have biases.
      scan: Whether runs of blocks with one mechanism are compiled once and scanned, the function being the same.
      remat: What the backward pass computes again: `none`, every `block`, or all but matrix products (`dots`).
    """

    name: str
    attention: str
    implementation: str
    depth: int
    width: int
    heads: int
    mlp: int
    norm: str
    norm_epsilon: float
    positions: str
    activation: str
    embedding_dropout: float
    dropout: float
    attention_dropout: float
    attention_bias: bool
    scan: bool
    remat: str

    POSITIONS: ClassVar[tuple[str, ...]] = ADDED
    DROPS_HIDDEN: ClassVar[bool] = True  # whether `dropout` is on the hidden units of MLPs too

    def __post_init__(self):
        for field in ("depth", "width", "heads", "mlp"):
            if getattr(self, field) < 1:
                raise UsageError(f"model.{field} must be at least 1, but it is {getattr(self, field)}.")
        for field in ("embedding_dropout", "dropout", "attention_dropout"):
            if not 0.0 <= getattr(self, field) < 1.0:
                raise UsageError(f"model.{field} must be at least 0 and below 1, but it is {getattr(self, field)}.")
        if self.norm_epsilon <= 0:
            raise UsageError(f"model.norm_epsilon must be above 0, but it is {self.norm_epsilon}.")
        if self.width % self.heads:
            raise UsageError(
                f"model.heads={self.heads} does not divide model.width={self.width}; choose a divisor of {self.width}."
            )
        self.implementations()
        check_choice("model.norm", self.norm, NORMS)
        check_choice("model.positions", self.positions, self.POSITIONS)
        check_choice("model.activation", self.activation, ACTIVATIONS)
        check_choice("model.remat", self.remat, BLOCKS)
        mechanisms.resolve(self.attention, self.depth)

    def deepest(self) -> int:
        """Blocks of the longest stack."""
        return self.depth

    def implementations(self) -> tuple[str, ...]:
        """How each layer of the longest stack computes its attention; a shorter one takes the first.

        Raises:
          UsageError: an unknown name, or more than layers.
        """
        items = [item.strip() for item in self.implementation.split("|")]
        for item in items:
            parse_implementation(item, "model.implementation")
        return specs.spread(items, self.implementation, "layer", self.deepest())

    def split_by_tensor(self) -> dict[str, int]:
        """Sizes that the mesh axis `tensor` splits, by their config fields."""
        return {"model.heads": self.heads, "model.mlp": self.mlp}

    def attention_layers(self, length: int, dtype: DTypeLike = jnp.float32) -> list[MultiHeadAttention]:
        """The attention of each block, unbound, built for at most `length` tokens."""
        return self.layers_of(self.attention, self.depth, length, dtype)

    def layers_of(self, spec: str, depth: int, length: int, dtype: DTypeLike) -> list[MultiHeadAttention]:
        """Attention layers of any spec string, unbound, built for at most `length` tokens."""
        return [
            MultiHeadAttention(
                mechanism=mechanism,
                heads=self.heads,
                length=length,
                implementation=implementation,
                dropout=self.attention_dropout,
                bias=self.attention_bias,
                epsilon=self.norm_epsilon,
                rotary=self.positions == "rotary",
                dtype=dtype,
                parent=None,
            )
            for mechanism, implementation in zip(mechanisms.resolve(spec, depth), self.implementations(), strict=False)
        ]

    def init_caches(
        self, layers: Sequence[MultiHeadAttention], batch: int, max_length: int, longest: int
    ) -> tuple[Cache, ...]:
        """An empty decode cache for each layer.

        Args:
          layers: Which attend to the tokens so far.
          batch: B.
          max_length: The most tokens that will be in them.
          longest: Tokens that learned positions are for.

        Raises:
          UsageError: more tokens than learned positions.
        """
        if self.positions == "learned" and max_length > longest:
            raise UsageError(
                f"{max_length} tokens were asked for, but positions were learned for {longest}; "
                "generate fewer, or train with a longer context."
            )
        return tuple(layer.init_cache(batch, max_length, self.width) for layer in layers)

    def blocks(self, length: int, dtype: DTypeLike = jnp.float32) -> list[Block]:
        """The blocks `block_0` and so on, which belong to the module that asks for them; train is their third input."""
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
        """One block of such layers, which belongs to the module that asks for it."""
        mlp = Mlp(self.mlp, self.activation, self.dropout * self.DROPS_HIDDEN, self.dropout, dtype, parent=None)
        return BLOCKS[self.remat](
            attention=attention,
            mlp=mlp,
            norm=self.norm,
            epsilon=self.norm_epsilon,
            dropout=self.dropout,
            dtype=dtype,
            cross=cross,
            name=name,
        )
