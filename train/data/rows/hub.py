"""Hugging Face: text sets by hub name or local folder through `datasets`, and single files of repositories."""

import dataclasses
import functools
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from attention.errors import UsageError
from train.data.rows.columns import Column
from train.data.rows.rows import digest


@dataclasses.dataclass(frozen=True)
class HubSplit:
    """A split of a set; see `train.data.rows.source.Table`.

    Attributes:
      name: For messages, such as `train of hf:NAME`.
      version: Differs whenever the rows differ.
      features: By column; of nested columns mappings of their own.
      rows: What `datasets` loaded.
    """

    name: str
    version: str
    features: Mapping[str, Any]
    rows: Any

    def checked(self, column: Column) -> Column:
        """The column, with its class names; raises a UsageError where there is none."""
        feature = column.require(self.features, self.name.partition(" of ")[2])
        return dataclasses.replace(column, classes=tuple(getattr(feature, "names", ()))) if column.is_class else column

    def content(self, key: Iterable[object]) -> str:
        """A digest of the version and the key."""
        return digest([self.version, *key])

    def reader(self, columns: Sequence[Column]) -> Callable[[], Iterator[tuple[str, Mapping[str, Any]]]]:
        """What starts reading; a UsageError on the way says that the network broke off."""
        names = [column.name for column in columns]
        outer = {name if name in self.features else name.partition(".")[0] for name in names}
        return functools.partial(_read_safely, self.rows.select_columns(sorted(outer)), self.name)


def open_split(name: str, split: str, data: Any) -> HubSplit:
    """Opens one split of a set.

    Args:
      name: `OWNER/NAME`, or `OWNER/NAME:CONFIG`; OWNER/NAME may be a local folder.
      split: A plain name, no slice.
      data: Fields `revision`, `streaming` and `data_dir`.

    Raises:
      UsageError: the set or split is not there or cannot be fetched.
    """
    repository, _, config = name.partition(":")
    rows = _load(repository, config, split, data)
    features = rows.features if rows.features is not None else next(iter(rows))
    nested = {column: dict.fromkeys(getattr(feature, "languages", ())) for column, feature in features.items()}
    version = digest([_version(rows, repository, data), name, split])
    return HubSplit(f"{split} of hf:{name}", version, {c: nested[c] or f for c, f in features.items()}, rows)


def fetch(repository: str, file: str, revision: str, field: str, otherwise: str) -> str:
    """The path of a repository's file: a copy that was fetched before, else fetched now.

    Args:
      repository: Such as `bert-base-cased`.
      file: Its path in there.
      revision: A branch, tag or commit; '' is the default one.
      field: The config field that asks for it, for the message.
      otherwise: What may stand there in its place.

    Raises:
      UsageError: it is not there, or cannot be fetched.
    """
    hub = _package("huggingface_hub")
    options = {"revision": revision or None}
    try:
        return hub.hf_hub_download(repository, file, local_files_only=True, **options)
    except (OSError, ValueError):
        pass  # not fetched yet; a name that is none fails again below
    try:
        return hub.hf_hub_download(repository, file, **options)
    except Exception as error:  # what it raises has no common base
        raise UsageError(
            f"Cannot fetch {file} of {repository!r}, which {field} names ({brief(error)}): check the name and the "
            f"network, or use {otherwise}."
        ) from error


def brief(error: Exception) -> str:
    """The first line of a library's message, to stand inside a sentence."""
    return str(error).strip().partition("\n")[0].rstrip(".:") or type(error).__name__


def _load(repository: str, config: str, split: str, data: Any) -> Any:
    datasets = _package("datasets")
    try:
        return datasets.load_dataset(
            repository,
            config or None,
            split=split,
            revision=data.revision or None,
            streaming=data.streaming,
            cache_dir=data.data_dir or None,
        )
    except Exception as error:  # what it raises has no common base
        advice = "check the name, the split and the network, or use 'file:PATH'"
        if "script" in str(error):
            advice = "set data.revision='refs/convert/parquet', where the hub keeps such sets as plain tables"
        raise UsageError(f"Cannot load {split!r} of hf:{repository} ({brief(error)}): {advice}.") from error


def _version(rows: Any, repository: str, data: Any) -> str:
    """Of the content: the table's own fingerprint, or for a stream the commit it comes from."""
    if not data.streaming:
        return _package("datasets").fingerprint.generate_fingerprint(rows)
    hub = _package("huggingface_hub")
    try:
        return hub.HfApi().dataset_info(repository, revision=data.revision or None).sha
    except Exception as error:  # what it raises has no common base
        raise UsageError(
            f"Cannot tell the version of hf:{repository} ({brief(error)}): streaming needs the hub; set "
            "data.streaming=False."
        ) from error


def _read_safely(rows: Any, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        for number, row in enumerate(rows):
            yield f"Row {number} of {name}", row
    except Exception as error:  # a stream breaks off with errors of many libraries
        raise UsageError(
            f"Reading {name} broke off ({brief(error)}): check the network and start again, or set "
            "data.streaming=False."
        ) from error


def _package(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"Hub names need the package {name} ({error}): pip install -r requirements.txt.") from error
