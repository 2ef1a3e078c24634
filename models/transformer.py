"""What Transformers share: the fields of their configs, and their blocks."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from attention import operations
from attention.activations import ACTIVATIONS
from attention.errors import UsageError
from attention.kernels.call import parse_implementation
from attention.operations import Cost
from models import specs
from models.config import ModelConfig
from models.fields import field
from models.layers.blocks import NORMS, Block, Mlp
from models.layers.cache import Cache
from models.layers.multi_head import MultiHeadAttention
from models.layers.positions import ADDED
from models.mechanisms import Mechanism, resolve

POLICIES = jax.checkpoint_policies
PRETRAINED = "Folder or name on the Hugging Face hub of weights to start from; '' starts from random ones."
BLOCKS: dict[str, type[Block]] = {  # one class each: a scan takes blocks that are equal
    "none": Block,
    "block": nn.remat(Block, policy=POLICIES.nothing_saveable, static_argnums=(3,)),
    "dots": nn.remat(Block, policy=POLICIES.dots_with_no_batch_dims_saveable, static_argnums=(3,)),
}


@dataclasses.dataclass(frozen=True)
class TransformerConfig(ModelConfig):
    """A stack of blocks of attention and MLP."""

    name: str = field("", "Which model it is.")
    attention: str = field("dot_product", "Mechanism spec string, see `models.mechanisms`.")
    implementation: str = field(
        "auto",
        "How attention is computed: `auto`, `xla`, `chunked`, `cudnn`, `pallas` or `reference`; `chunked(128, 256)` is "
        "in tiles of 128 queries and 256 keys. `pallas|cudnn` gives one to each layer, the last repeating, in all "
        "attentions of the model alike.",
        may_change=True,
    )
    depth: int = field(4, "Number of blocks.", least=1)
    width: int = field(64, "D.", least=1, multiple_of="heads", matched="parameters")
    heads: int = field(4, "N.", least=1)
    mlp: int = field(128, "Hidden units of each block's MLP.", least=1, matched="parameters")
    norm: str = field("pre", "LayerNorm before (`pre`) or after (`post`) each residual.", choices=NORMS)
    norm_epsilon: float = field(1e-6, "LayerNorm's ε.", above=0)
    positions: str = field("learned", "How tokens know where they are.", choices=ADDED)
    activation: str = field("gelu", "The MLP's; `gelu` is the exact one.", choices=ACTIVATIONS)
    embedding_dropout: float = field(0.0, "Rate on the embeddings.", least=0, below=1)
    dropout: float = field(0.1, "Rate on the attention layers' outputs and both layers of each MLP.", least=0, below=1)
    attention_dropout: float = field(0.1, "Rate on the attention weights.", least=0, below=1)
    attention_bias: bool = field(True, "Whether linear projections of queries, keys, values and outputs have biases.")
    scan: bool = field(
        False,
        "Whether runs of blocks with one mechanism are compiled once and scanned, the function being the same.",
        may_change=True,
    )
    remat: str = field(
        "none",
        "What the backward pass computes again: `none`, every `block`, or all but matrix products (`dots`).",
        choices=BLOCKS,
        may_change=True,
    )

    STACKS: ClassVar[Mapping[str, str]] = {"attention": "depth"}  # spec strings, and how many layers they are for
    DROPS_HIDDEN: ClassVar[bool] = True  # whether `dropout` is on the hidden units of MLPs too

    def __post_init__(self):
        super().__post_init__()
        _ = self.implementations, self.mechanisms  # which are read once

    @functools.cached_property
    def mechanisms(self) -> dict[str, tuple[Mechanism, ...]]:
        """The mechanism of each layer, by the fields of their spec strings.

        Raises:
          UsageError: unknown names or options, or more items than layers.
        """
        return {spec: resolve(getattr(self, spec), getattr(self, depth)) for spec, depth in self.STACKS.items()}

    @functools.cached_property
    def implementations(self) -> tuple[str, ...]:
        """How each layer of the longest stack computes its attention; a shorter one takes the first.

        Raises:
          UsageError: an unknown name, or more than layers.
        """
        items = [item.strip() for item in self.implementation.split("|")]
        for item in items:
            parse_implementation(item, "model.implementation")
        deepest = max(getattr(self, depth) for depth in self.STACKS.values())
        return specs.spread(items, self.implementation, "layer", deepest)

    def attentions(self) -> dict[str, str]:
        """The spec strings by their fields."""
        return {spec: getattr(self, spec) for spec in self.STACKS}

    def split_by_tensor(self) -> dict[str, int]:
        """Sizes that the mesh axis `tensor` splits, by their config fields."""
        return {"model.heads": self.heads, "model.mlp": self.mlp}

    def attention_layers(
        self, length: int, dtype: DTypeLike = jnp.float32, stack: str = "attention"
    ) -> list[MultiHeadAttention]:
        """The attention of each block of a stack, unbound, built for at most `length` tokens.

        Args:
          length: ℓ.
          dtype: Compute dtype.
          stack: The field of its spec string.
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
                rotary=self.positions == "rotary",
                dtype=dtype,
                parent=None,
            )
            for mechanism, implementation in zip(self.mechanisms[stack], self.implementations, strict=False)
        ]

    def cost_of_blocks(self, length: int, stack: str = "attention") -> Cost:
        """One forward pass of the attention layers of a stack, and of as many MLPs, over one sequence."""
        mlp = operations.mlp(length, self.width, self.mlp, self.width)
        return sum((layer.cost(length, self.width, self.heads) + mlp for layer in self.mechanisms[stack]), Cost())

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
