"""Text sets of Hugging Face by hub name or local folder, through `datasets`."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

from attention.errors import UsageError
from train.data import packages
from train.data.rows.rows import DataColumn, OpenedSplit, brief, digest

NEED = "Hub names need the package {}"


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
    columns = [column.of(getattr(column.require(nested, f"hf:{name}"), "names", ())) for column in columns]
    outer = {column.name if column.name in features else column.name.partition(".")[0] for column in columns}
    title = f"{split} of hf:{name}"
    return OpenedSplit(
        title, columns, functools.partial(_read, rows.select_columns(sorted(outer)), title), version=[version]
    )


def _load(repository: str, config: str, split: str, data: Any) -> Any:
    datasets = packages.load("datasets", NEED)
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
        return packages.load("datasets", NEED).fingerprint.generate_fingerprint(rows)
    hub = packages.load("huggingface_hub", NEED)
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
