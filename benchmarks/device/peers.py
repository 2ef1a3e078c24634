"""Speed of the same core in PyTorch: its fused kernels, FlexAttention, and flash-linear-attention."""

import functools
import gc
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from benchmarks import attention
from benchmarks.attention import Shape
from benchmarks.device import core, timing
from benchmarks.device.items import Item, Row, Skipped, need

ALLOCATED = "seen by PyTorch's allocator"
FLASH, CUDNN, EFFICIENT = "PyTorch flash", "PyTorch cuDNN", "PyTorch efficient"
FLEX, FLA = "FlexAttention", "flash-linear-attention"
OF_FLEX = ("dot_product", "alibi", "soft_cap")
PRODUCT = "a product in PyTorch"
PACKAGES = {FLA: "fla"}  # besides PyTorch


class Peer(NamedTuple):
    """A contestant in PyTorch.

    Attributes:
      name: Its name in tables.
      spec: The mechanism whose work it does.
      make: Makes the function and its inputs for a shape.
    """

    name: str
    spec: str
    make: Callable[[Shape], tuple[Callable[..., Any], list[Any]]]


def items(tiny: bool) -> list[Item]:
    """Lists the fused kernels shape by shape, then contestants that must be compiled."""
    known = []
    for group, choose in {"core": fused, "peers": compiled}.items():
        for shape, what in core.shapes(tiny):
            for peer in choose(shape):
                prepare = functools.partial(prepare_torch, peer, shape, what)
                known.append(Item(core.item_name(group, shape, what, peer.name), group, "torch", prepare))
    return [Item("core, method, torch", "core", "torch", functools.partial(method, tiny)), *known]


def fused(shape: Shape) -> Iterator[Peer]:
    """Yields PyTorch's own kernels, which need no compiling."""
    names = {FLASH: "flash", CUDNN: "cuDNN"} if shape.dtype == "bfloat16" else {EFFICIENT: "efficient"}
    for name, backend in names.items():
        yield Peer(name, "dot_product", functools.partial(_fused, backend))


def compiled(shape: Shape) -> Iterator[Peer]:
    """Yields contestants compiled for a shape: FlexAttention at two lengths, flash-linear-attention for heads of 64."""
    if shape.dtype != "bfloat16" or shape.width == core.HEADS[1][1]:
        return
    if shape.length in (16, 1024, 4096):
        for spec in OF_FLEX:
            yield Peer(f"{FLEX}, {spec}", spec, functools.partial(_flex, spec))
    for spec in core.STATES:
        yield Peer(f"{FLA}, {spec}", spec, functools.partial(_fla, spec))


def _fused(backend: str, shape: Shape) -> tuple[Callable[..., Any], list[Any]]:
    from benchmarks.peers import attention_gpu

    return attention_gpu.fused(backend), drawn(shape, by_head=True)


def _flex(spec: str, shape: Shape) -> tuple[Callable[..., Any], list[Any]]:
    from benchmarks.peers import attention_gpu

    given = drawn(shape, by_head=True)
    return attention_gpu.flex(spec, shape.length, shape.heads, given[0].device.type), given


def _fla(spec: str, shape: Shape) -> tuple[Callable[..., Any], list[Any]]:
    from benchmarks.peers import recurrences_fla

    given = drawn(shape, by_head=False)
    given[1] = given[1] / given[1].float().norm(dim=-1, keepdim=True).to(given[1].dtype)
    return recurrences_fla.operation(spec), [*given, *recurrences_fla.gates(spec, given[0])]


def drawn(shape: Shape, by_head: bool) -> list[Any]:
    """Draws query, key and value, `(B, N, T, H)` or `(B, T, N, H)`."""
    import torch

    size = (shape.heads, shape.length) if by_head else (shape.length, shape.heads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = getattr(torch, shape.dtype)
    return [torch.randn(shape.batch, *size, shape.width, device=device, dtype=dtype) for _ in range(3)]


def need_torch(name: str) -> None:
    """Raises Skipped if a contestant cannot be measured here."""
    need("torch", name)
    need(next((package for kind, package in PACKAGES.items() if name.startswith(kind)), "torch"), name)
    import torch

    if not torch.cuda.is_available() and name not in (FLASH, PRODUCT):
        raise Skipped(f"PyTorch sees no GPU, so {name} is left out.")


def prepare_torch(peer: Peer, shape: Shape, what: str) -> Callable[[], Row]:
    """Makes a function that measures a contestant, which PyTorch compiles at its first call."""

    def measured() -> Row:
        need_torch(peer.name)
        import torch

        torch._dynamo.reset()  # otherwise it compiles a function for at most eight shapes
        mechanism, before = attention.mechanism_of(peer.spec), held()
        call = _call(*peer.make(shape), what)
        row = timing.measured(call, "torch")
        contest = core.of_contest(shape, what, peer.name, attention.useful(mechanism, shape).flops)
        return row | contest | allocated(before)

    return measured


def _call(function: Callable[..., Any], given: list[Any], what: str) -> Callable[[], Any]:
    """Makes a call of the forward pass, or of both passes with the gradients of all inputs."""
    import torch

    def forward() -> Any:
        with torch.no_grad():
            return function(*given)

    if what == core.FORWARD:
        return forward
    inputs = [x.requires_grad_() for x in given]
    weigh = torch.randn_like(inputs[2])
    return lambda: torch.autograd.grad(function(*inputs), inputs, weigh)


def held() -> int:
    """Counts the bytes that PyTorch holds, and resets their peak; 0 on a CPU."""
    import torch

    if not torch.cuda.is_available():
        return 0
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def allocated(before: int) -> Row:
    """Reads the peak of bytes that PyTorch has held since `held`, beyond those before; empty on a CPU."""
    import torch

    if not torch.cuda.is_available():
        return {}
    torch.cuda.synchronize()
    return {"bytes": torch.cuda.max_memory_allocated() - before, "bytes_of": ALLOCATED}


def method(tiny: bool) -> Callable[[], Row]:
    """Makes a function that measures a product by the profiler and by the slope over chains of calls."""

    def measured() -> Row:
        need_torch(PRODUCT)
        import torch

        side = 256 if tiny else 8192
        device = "cuda" if torch.cuda.is_available() else "cpu"
        x, y = torch.randn(2, side, side, device=device).bfloat16()
        scaled = y / side**0.5
        by_profiler = timing.measured(lambda: x @ scaled, "torch")
        return core.in_both_ways(by_profiler, timing.slope(lambda x: x @ scaled, x, "torch"))

    return measured
