"""What a traced program consists of."""

from collections.abc import Iterator
from typing import Any

import jax
from jax.extend.core import JaxprEqn


def equations(jaxpr: Any) -> Iterator[JaxprEqn]:
    """All of them, those within loops and calls too."""
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        yield eqn
        for value in jax.tree.leaves(list(eqn.params.values()), is_leaf=_is_jaxpr):
            if _is_jaxpr(value):
                yield from equations(value)


def _is_jaxpr(value: Any) -> bool:
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")
