"""What every source of text gives: a stream of documents that can be read again from the start."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple


class Document(NamedTuple):
    """A text, with its class as it is written in the data ('' where there is none)."""

    text: str
    label: str = ""


@dataclasses.dataclass(frozen=True)
class Documents:
    """One part of a source.

    Attributes:
      name: For messages, such as `train of file:reviews`.
      content: A digest that differs whenever the documents differ.
      read: Starts reading; raises a UsageError on the way where a document cannot be read.
      class_names: In the source's own order; () where it does not say, and labels sort themselves.
    """

    name: str
    content: str
    read: Callable[[], Iterator[Document]]
    class_names: tuple[str, ...] = ()


def digest(parts: Iterable[object]) -> str:
    """A short hash of what the parts say of themselves, in order."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:32]
