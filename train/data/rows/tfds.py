"""Sets of TensorFlow Datasets, which are read without TensorFlow and prepared with it."""

import dataclasses
import difflib
import functools
import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from attention.errors import UsageError, check_known, unknown
from train.data import packages
from train.data.rows.rows import DataColumn, OpenedSplit, brief, digest
from train.data.rows.splits import MissingSplitError


@dataclasses.dataclass(frozen=True)
class TfdsSplit:
    """A split of a prepared set.

    Attributes:
      name: The name of the set, as TFDS writes it.
      split: A plain name.
      folder: The folder of prepared sets.
      builder: TFDS's builder.
    """

    name: str
    split: str
    folder: str
    builder: Any

    @property
    def features(self) -> Any:
        """The TFDS features by name."""
        return self.builder.info.features

    def check_feature(self, field: str, key: str, kind: type) -> None:
        """Raises UsageError unless the feature `key`, which the config field `field` names, is of that kind."""
        fitting = [name for name, feature in self.features.items() if isinstance(feature, kind)]
        check_known(f"{field} for tfds:{self.name}", key, fitting)

    def of(self, columns: Sequence[DataColumn]) -> OpenedSplit:
        """Opens columns; raises UsageError where they are not text or a class, and where `records` raises it."""
        columns = [self._checked(column) for column in columns]
        name = f"{self.split} of tfds:{self.name}"
        read = functools.partial(_rows, self.records(), columns, name)
        version = digest([self.builder.info.full_name, *((file.name, os.path.getsize(file)) for file in self.files)])
        return OpenedSplit(name, columns, read, version=[version])

    def _checked(self, column: DataColumn) -> DataColumn:
        if not column.is_class:
            column.require(_texts(self.features), f"tfds:{self.name}")
            return column
        self.check_feature(column.field, column.name, package().features.ClassLabel)
        return column.of(self.features[column.name].names)

    @property
    def files(self) -> list[Any]:
        """The paths of the records."""
        return list(self.builder.info.splits[self.split].filepaths)

    def records(self, decoders: dict[str, Any] | None = None) -> Sequence[dict[str, Any]]:
        """Returns the examples with random access.

        Args:
          decoders: TFDS decoders by feature.

        Raises:
          UsageError: the set was prepared without random access, or files are missing.
        """
        name, folder, builder = self.name, self.folder, self.builder
        try:
            encoded = builder.as_data_source(self.split, decoders=decoders)
        except NotImplementedError as error:
            # `tfds build --overwrite` in the same folder fails in TFDS 4.9.10, so both ways out leave the folder alone.
            raise UsageError(
                f"tfds:{name} is prepared in {folder} as {builder.info.file_format.value}, which has no random access: "
                f"rename {builder.data_path} and run again with TensorFlow installed (pip install -r "
                f"requirements-prepare.txt), or run `tfds build {name} --file_format=array_record "
                "--data_dir=NEW_FOLDER` (which needs apache-beam and mlcroissant too) and set data.data_dir to "
                "NEW_FOLDER."
            ) from error
        for path in self.files:
            if not path.exists():
                raise UsageError(f"tfds:{name} in {folder} is damaged: {path.name} is missing; prepare it again.")
        return encoded


def open_split(name: str, split: str, data_dir: str) -> TfdsSplit:
    """Opens a split, preparing the set first if need be and possible.

    Args:
      name: The set as TFDS writes it: `cifar100`, `name/config`, `name:1.2.3`.
      split: A plain name, no slice.
      data_dir: The folder of sets; '' is the environment's TFDS_DATA_DIR, else TFDS's default.

    Raises:
      UsageError: the set is unknown, not prepared and cannot be, or has no such split.
    """
    tfds = package()
    folder = os.path.expanduser(data_dir or os.environ.get("TFDS_DATA_DIR") or tfds.core.constants.DATA_DIR)
    builder = _builder(tfds, name, folder)
    if not (builder.data_path / tfds.core.constants.DATASET_INFO_FILENAME).exists():
        _prepare(builder, name, folder)
    if split not in builder.info.splits:
        raise MissingSplitError(str(unknown(f"split of tfds:{name}", split, builder.info.splits)))
    return TfdsSplit(name, split, folder, builder)


def _rows(
    records: Sequence[dict[str, Any]], columns: Sequence[DataColumn], name: str
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields rows with decoded texts, since TFDS gives bytes."""
    for number, record in enumerate(records):
        where = f"Example {number} of {name}"
        values = {column.name: column.require(record, where) for column in columns}
        yield where, {n: value.decode() if isinstance(value, bytes) else value for n, value in values.items()}


def _texts(features: Any) -> dict[str, Any]:
    """Returns the features that are text, nested as in the set."""
    kinds = package().features
    texts = {name: feature for name, feature in features.items() if isinstance(feature, kinds.Text)}
    nested = {name: _texts(feature) for name, feature in features.items() if isinstance(feature, kinds.FeaturesDict)}
    return texts | {name: inner for name, inner in nested.items() if inner}


def package() -> ModuleType:
    """Imports tensorflow_datasets, or raises a UsageError that says how to install it."""
    return packages.load("tensorflow_datasets", "TFDS data need tensorflow-datasets")


def _builder(tfds: ModuleType, name: str, folder: str) -> Any:
    from tensorflow_datasets.core.registered import DatasetNotFoundError

    try:
        return tfds.builder(name, data_dir=folder)
    except DatasetNotFoundError as error:
        known = tfds.list_builders(with_community_datasets=False)
        nearest = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
        raise UsageError(
            f"Unknown TFDS data set {name!r}, and none of that name is prepared in {folder}.{hint} "
            "Valid: the names at https://www.tensorflow.org/datasets/catalog."
        ) from error
    except (AssertionError, ImportError, ValueError) as error:
        raise UsageError(
            f"Cannot open tfds:{name} in {folder}: {brief(error)}; "
            "write 'tfds:NAME', 'tfds:NAME/CONFIG' or 'tfds:NAME:1.2.3'."
        ) from error


def _prepare(builder: Any, name: str, folder: str) -> None:
    missing = f"tfds:{name} is not prepared in {folder}"
    elsewhere = "or set data.data_dir or TFDS_DATA_DIR to a folder where it is prepared"
    if importlib.util.find_spec("tensorflow") is None:
        raise UsageError(
            f"{missing}, and preparing it needs TensorFlow: pip install -r requirements-prepare.txt, {elsewhere}."
        )
    _check_network(builder, f"{missing}, and the network is needed to download it but {{}}: connect, {elsewhere}.")
    try:
        builder.download_and_prepare(file_format="array_record")
    # TFDS reports archives that must be fetched by hand with an AssertionError.
    except (AssertionError, OSError, ValueError) as error:
        raise UsageError(f"{missing}, and preparing it failed ({brief(error)}): mend that, {elsewhere}.") from error


def _check_network(builder: Any, message: str) -> None:
    """Raises UsageError where there is no network, for which TFDS itself would retry for minutes."""
    import requests

    urls = [] if builder.MANUAL_DOWNLOAD_INSTRUCTIONS else list(builder.url_infos or ())
    for url in urls[:1]:
        try:
            requests.head(url, timeout=10)
        except (requests.ConnectionError, requests.Timeout) as error:
            raise UsageError(message.format(f"{url} cannot be reached")) from error
