"""Hugging Face: text sets by hub name or local folder through `datasets`, and single files of repositories."""

import functools
import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from attention.errors import UsageError, unknown
from train.data.documents import Document, Documents, digest

_UNLABELLED = -1  # what sets with class names give to test examples whose class is secret


def read(name: str, split: str, data: Any) -> Documents:
    """One split of a set, one document a row.

    Args:
      name: `OWNER/NAME`, or `OWNER/NAME:CONFIG`; OWNER/NAME may be a local folder.
      split: A plain name, no slice.
      data: Fields `text_column`, `label_column` ('' for none), `revision`, `streaming` and `data_dir`.

    Raises:
      UsageError: the set, split or column is not there or cannot be fetched.
    """
    repository, _, config = name.partition(":")
    rows = _load(repository, config, split, data)
    features = rows.features if rows.features is not None else dict.fromkeys(next(iter(rows)))
    for field, column in (("data.text_column", data.text_column), ("data.label_column", data.label_column)):
        if column and column not in features:
            raise unknown(f"{field} for hf:{name}", column, features)
    names = getattr(features[data.label_column], "names", ()) if data.label_column else ()
    content = digest([_version(rows, repository, data), name, split, data.text_column, data.label_column])
    where = f"{split} of hf:{name}"
    return Documents(where, content, functools.partial(_rows, rows, where, data, tuple(names)), tuple(names))


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


def _rows(rows: Any, where: str, data: Any, names: tuple[str, ...]) -> Iterator[Document]:
    columns = [column for column in (data.text_column, data.label_column) if column]
    for number, row in enumerate(_read_safely(rows.select_columns(columns), where)):
        text, label = row[data.text_column], row[data.label_column] if data.label_column else ""
        if not isinstance(text, str):
            raise UsageError(f"Row {number} of {where} has {text!r} in {data.text_column!r}, which is no text.")
        if label is None or (names and label == _UNLABELLED):
            raise UsageError(f"Row {number} of {where} has no class in {data.label_column!r}; use another split.")
        yield Document(text, names[label] if names else str(label))


def _read_safely(rows: Any, where: str) -> Iterator[dict[str, Any]]:
    try:
        yield from rows
    except Exception as error:  # a stream breaks off with errors of many libraries
        raise UsageError(
            f"Reading {where} broke off ({brief(error)}): check the network and start again, or set "
            "data.streaming=False."
        ) from error


def _package(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"Hub names need the package {name} ({error}): pip install -r requirements.txt.") from error
