"""Hugging Face data sets, `hf:NAME`, by hub name or local folder, through the package `datasets`."""

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attention.errors import UsageError, brief, check_known
from models.files import at_home
from train.data import packages
from train.data.section import Section
from train.data.sources.rows import DataColumn, Placed, Rows, digest, picked
from train.data.splits import MissingSplitError, named

_SAVED = ("dataset_dict.json", "state.json")  # in a folder that `save_to_disk` wrote


def open_split(name: str, split: str, columns: Sequence[DataColumn], data: Section) -> Rows:
    """Opens one split of `OWNER/NAME` or `OWNER/NAME:CONFIG`; a local folder may come from `save_to_disk`."""
    repository, _, config = name.partition(":")
    table = _load(repository, config, split, data)
    version = digest([_version(table, repository, data), name, split])
    features = table.features if table.features is not None else next(iter(table), {})
    nested = {n: dict.fromkeys(getattr(feature, "languages", ())) or feature for n, feature in features.items()}
    columns = [_found(column, nested, f"hf:{name}") for column in columns]
    for column in columns:
        if column.role == "image":
            table = table.cast_column(column.name, packages.hub("datasets").Image(decode=False))
    outer = {column.name if column.name in features else column.name.partition(".")[0] for column in columns}
    title = f"{split} of hf:{name}"
    return picked(title, columns, [version], functools.partial(_read, table.select_columns(sorted(outer)), title))


def _found(column: DataColumn, features: Mapping[str, Any], where: str) -> DataColumn:
    """Finds a column and its class names; the only column of a kind replaces a missing default."""
    datasets = packages.hub("datasets")
    kind = {"image": datasets.Image, "label": datasets.ClassLabel}.get(column.role, ())
    fitting = [name for name, feature in features.items() if isinstance(feature, kind)]
    if column.name == column.role and column.name not in features and len(fitting) == 1:
        column = dataclasses.replace(column, name=fitting[0])
    if column.role == "image":
        check_known(f"{column.field} for {where}", column.name, fitting)
    feature = column.require(features, where)
    return dataclasses.replace(column, classes=tuple(getattr(feature, "names", ())) if column.role == "label" else ())


def _load(repository: str, config: str, split: str, data: Section) -> Any:
    datasets, saved = packages.hub("datasets"), at_home(repository)
    try:
        if any((saved / name).is_file() for name in _SAVED):
            parts = datasets.load_from_disk(str(saved))  # several splits, or one table, which is `train`
            return named(parts if isinstance(parts, Mapping) else {"train": parts}, split, f"hf:{repository}")
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


def _version(table: Any, repository: str, data: Section) -> str:
    """Identifies the content by the table's fingerprint, or by a stream's commit."""
    if not data.streaming:
        return packages.hub("datasets").fingerprint.generate_fingerprint(table)
    hub = packages.hub("huggingface_hub")
    try:
        return hub.HfApi().dataset_info(repository, revision=data.revision or None).sha
    except Exception as error:  # what it raises has no common base
        raise UsageError(
            f"Cannot tell the version of hf:{repository} ({brief(error)}): streaming needs the hub; set "
            "data.streaming=False."
        ) from error


def _read(table: Any, name: str) -> Iterator[Placed]:
    try:
        for number, row in enumerate(table):
            yield f"Row {number} of {name}", row
    except Exception as error:  # a stream may raise errors of many libraries
        raise UsageError(
            f"Reading {name} broke off ({brief(error)}): check the network and start again, or set "
            "data.streaming=False."
        ) from error
