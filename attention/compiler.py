"""A setting of XLA without which some programs compute wrong numbers on a CPU, and say nothing."""

import os
import warnings

import jaxlib
from jax._src import xla_bridge  # there is no public name for whether a backend is in use

FUSIONS = "--xla_cpu_experimental_ynn_fusion_type"
WRONG = (0, 10, 2), (0, 11, 2)  # the first and the last jaxlib that were seen to compute wrong numbers


def leave_out_fusions() -> None:
    """Turns XLA's YNNPACK fusions off, which join products of matrices with what is around them.

    On x86 they read memory that was never written. In a loop over batches, outputs of gated DeltaNet by chunks were
    wrong by up to 1e37, others each time (also https://github.com/jax-ml/jax/issues/39103). A value in XLA_FLAGS is
    kept. XLA reads XLA_FLAGS before the first computation, so a warning says where it is too late.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    version = tuple(int(part) for part in jaxlib.__version__.split(".")[:3] if part.isdigit())
    if FUSIONS in flags or not WRONG[0] <= version <= WRONG[1]:
        return
    os.environ["XLA_FLAGS"] = f"{flags} {FUSIONS}=".strip()
    if xla_bridge.backends_are_initialized() and "cpu" in xla_bridge.backends():
        warnings.warn(
            f"JAX computed something before attention was imported, so jaxlib {jaxlib.__version__} may compute wrong "
            f"numbers on a CPU; import attention first, or set XLA_FLAGS={FUSIONS}= (with nothing behind the =).",
            stacklevel=3,
        )
