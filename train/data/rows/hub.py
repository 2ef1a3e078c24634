"""Hugging Face: text sets by hub name or local folder through `datasets`, and single files of repositories."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

from attention.errors import UsageError
from train.data import packages
from train.data.rows.columns import DataColumn
from train.data.rows.rows import OpenedSplit, brief, digest

_NEED = "Hub names need the package {}"


def open_split(name: str, split: str, data: Any, columns: Sequence[DataColumn]) -> OpenedSplit:
    """Opens one split of a data set.

    Args:
      name: `OWNER/NAME`, or `OWNER/NAME:CONFIG`; OWNER/NAME may be a local folder.
      split: A plain name, no slice.
      data: Fields `revision`, `streaming` and `data_dir`.
      columns: The columns to read.

    Raises:
      UsageError: the set, split or a column does not exist or cannot be fetched.
    """
    repository, _, config = name.partition(":")
    rows = _load(repository, config, split, data)
    version = digest([_version(rows, repository, data), name, split])
    features = rows.features if rows.features is not None else next(iter(rows))
    nested = {n: dict.fromkeys(getattr(feature, "languages", ())) or feature for n, feature in features.items()}
    columns = [_with_classes(column, column.require(nested, f"hf:{name}")) for column in columns]
    outer = {column.name if column.name in features else column.name.partition(".")[0] for column in columns}
    title = f"{split} of hf:{name}"
    return OpenedSplit(
        title, columns, functools.partial(_read, rows.select_columns(sorted(outer)), title), version=[version]
    )


def _with_classes(column: DataColumn, feature: Any) -> DataColumn:
    return dataclasses.replace(column, classes=tuple(getattr(feature, "names", ()))) if column.is_class else column


def fetch(repository: str, file: str, revision: str, field: str, otherwise: str) -> str:
    """Returns the path of a repository's file: a copy that was fetched before, or else one fetched now.

    Args:
      repository: The repository, such as `bert-base-cased`.
      file: The file's path in the repository.
      revision: A branch, tag or commit; '' is the default one.
      field: The config field that asks for it, for the message.
      otherwise: What the field may hold instead, for the message.

    Raises:
      UsageError: the file does not exist, or cannot be fetched.
    """
    hub = packages.load("huggingface_hub", _NEED)
    options = {"revision": revision or None}
    try:
        return hub.hf_hub_download(repository, file, local_files_only=True, **options)
    except (OSError, ValueError):
        pass  # not fetched yet; an invalid name fails again below
    try:
        return hub.hf_hub_download(repository, file, **options)
    except Exception as error:  # what it raises has no common base
        raise UsageError(
            f"Cannot fetch {file} of {repository!r}, which {field} names ({brief(error)}): check the name and the "
            f"network, or use {otherwise}."
        ) from error


def _load(repository: str, config: str, split: str, data: Any) -> Any:
    datasets = packages.load("datasets", _NEED)
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
    """Returns the version of the content: the table's fingerprint, or for a stream its commit."""
    if not data.streaming:
        return packages.load("datasets", _NEED).fingerprint.generate_fingerprint(rows)
    hub = packages.load("huggingface_hub", _NEED)
    try:
        return hub.HfApi().dataset_info(repository, revision=data.revision or None).sha
    except Exception as error:  # what it raises has no common base
        raise UsageError(
            f"Cannot tell the version of hf:{repository} ({brief(error)}): streaming needs the hub; set "
            "data.streaming=False."
        ) from error


def _read(rows: Any, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        for number, row in enumerate(rows):
            yield f"Row {number} of {name}", row
    except Exception as error:  # a stream may raise errors of many libraries
        raise UsageError(
            f"Reading {name} broke off ({brief(error)}): check the network and start again, or set "
            "data.streaming=False."
        ) from error
