"""Sets of Hugging Face by hub name or local folder, through `datasets`."""

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attention.errors import UsageError, check_known, unknown
from models.files import at_home
from train.data import packages
from train.data.rows.rows import DataColumn, OpenedSplit, brief, digest
from train.data.rows.splits import MissingSplitError

NEED = "Hub names need the package {}"
_SAVED = ("dataset_dict.json", "state.json")  # of a folder that `save_to_disk` wrote


def open_split(name: str, split: str, data: Any, columns: Sequence[DataColumn]) -> OpenedSplit:
    """Opens one split of a data set.

    Args:
      name: `OWNER/NAME`, or `OWNER/NAME:CONFIG`; OWNER/NAME may be a local folder, also one of `save_to_disk`.
      split: A plain name, no slice.
      data: Fields `revision`, `streaming` and `data_dir`.
      columns: The columns to read.

    Raises:
      UsageError: the set, split or a column does not exist or cannot be fetched.
    """
    repository, _, config = name.partition(":")
    rows = _load(repository, config, split, data)
    version = digest([_version(rows, repository, data), name, split])
    features = rows.features if rows.features is not None else next(iter(rows), {})
    nested = {n: dict.fromkeys(getattr(feature, "languages", ())) or feature for n, feature in features.items()}
    columns = [_found(column, nested, f"hf:{name}") for column in columns]
    for column in columns:
        if column.is_image:
            rows = rows.cast_column(column.name, packages.load("datasets", NEED).Image(decode=False))
    outer = {column.name if column.name in features else column.name.partition(".")[0] for column in columns}
    title = f"{split} of hf:{name}"
    return OpenedSplit(
        title, columns, functools.partial(_read, rows.select_columns(sorted(outer)), title), version=[version]
    )


def _found(column: DataColumn, features: Mapping[str, Any], where: str) -> DataColumn:
    """Returns a column with its classes, or in place of a default name that is missing the only one of its kind.

    Raises:
      UsageError: there is no such column.
    """
    datasets = packages.load("datasets", NEED)
    kind = datasets.Image if column.is_image else datasets.ClassLabel
    fitting = {name: feature for name, feature in features.items() if isinstance(feature, kind)}
    if column.guessed and column.name not in features and len(fitting) == 1:
        column = dataclasses.replace(column, name=next(iter(fitting)))
    if column.is_image:
        check_known(f"{column.field} for {where}", column.name, fitting)
    return column.of(getattr(column.require(features, where), "names", ()))


def _load(repository: str, config: str, split: str, data: Any) -> Any:
    datasets, saved = packages.load("datasets", NEED), at_home(repository)
    try:
        if any((saved / name).is_file() for name in _SAVED):
            return _of_disk(datasets.load_from_disk(str(saved)), repository, split)
        return datasets.load_dataset(
            repository,
            config or None,
            split=split,
            revision=data.revision or None,
            streaming=data.streaming,
            cache_dir=data.data_dir or None,
        )
    except UsageError:
        raise
    except Exception as error:  # what it raises has no common base
        advice = "check the name, the split and the network, or use 'file:PATH'"
        if "script" in str(error):
            advice = "set data.revision='refs/convert/parquet', where the hub keeps such sets as plain tables"
        kind = MissingSplitError if re.match("(Unknown|Bad) split", str(error)) else UsageError
        raise kind(f"Cannot load {split!r} of hf:{repository} ({brief(error)}): {advice}.") from error


def _of_disk(saved: Any, repository: str, split: str) -> Any:
    """Returns a split of what `save_to_disk` wrote: a set of splits, or one table, which is `train`."""
    parts = saved if isinstance(saved, Mapping) else {"train": saved}
    if split not in parts:
        raise MissingSplitError(str(unknown(f"split of hf:{repository}", split, parts)))
    return parts[split]


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
