"""TensorFlow Datasets, `tfds:NAME`: preparing one needs TensorFlow, reading it does not."""

import dataclasses
import difflib
import importlib.util
import os
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from attention.errors import UsageError, brief, check_known
from train.data import packages
from train.data.section import Section
from train.data.sources.rows import DataColumn, Placed, Row, Rows, picked, row_of
from train.data.splits import named


def open_split(name: str, split: str, columns: Sequence[DataColumn], data: Section) -> Rows:
    """Opens a split of a set named as in TFDS (`cifar100`, `name/config`, `name:1.2.3`), prepared first if necessary.

    `data.data_dir` is the folder of sets; '' is the environment's TFDS_DATA_DIR, else TFDS's default.
    """
    tfds = packages.load("tensorflow_datasets", "TFDS data need")
    folder = os.path.expanduser(data.data_dir or os.environ.get("TFDS_DATA_DIR") or tfds.core.constants.DATA_DIR)
    builder = _builder(tfds, name, folder)
    if not (builder.data_path / tfds.core.constants.DATASET_INFO_FILENAME).exists():
        _prepare(builder, name, folder)
    named(builder.info.splits, split, f"tfds:{name}")
    features = builder.info.features
    columns = [_checked(column, features, f"tfds:{name}", tfds.features) for column in columns]
    images = {column.name: tfds.decode.SkipDecoding() for column in columns if column.role == "image"}
    records = _records(builder, split, name, folder, images or None)
    files = [(file.name, os.path.getsize(file)) for file in builder.info.splits[split].filepaths]
    rows = Records(records, columns, f"{split} of tfds:{name}")
    shape = tuple(size or 0 for size in features[columns[0].name].shape) if images else ()
    whole = picked(rows.name, columns, [builder.info.full_name, *files], lambda: map(rows.placed, range(len(rows))))
    return dataclasses.replace(whole, records=rows, image_shape=shape)


@dataclasses.dataclass(frozen=True)
class Records(Sequence):
    """The rows of a prepared set by number, from TFDS's data source."""

    records: Sequence[dict[str, Any]]
    columns: Sequence[DataColumn]
    name: str

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Row:
        return row_of(self.columns, *self.placed(index))

    def placed(self, index: int) -> Placed:
        """Reads an example as TFDS has it, with its place."""
        return f"Example {index} of {self.name}", self.records[index]


def _checked(column: DataColumn, features: Mapping[str, Any], where: str, kinds: ModuleType) -> DataColumn:
    """Checks that a feature is of the column's kind, and gives the column its class names."""
    if column.role not in ("image", "label"):
        column.require(_texts(features, kinds), where)
        return column
    kind = {"image": kinds.Image, "label": kinds.ClassLabel}[column.role]
    check_known(f"{column.field} for {where}", column.name, [n for n, f in features.items() if isinstance(f, kind)])
    feature = features[column.name]
    if column.role == "label":
        return dataclasses.replace(column, classes=tuple(feature.names))
    if np.dtype(feature.np_dtype) != np.uint8 or feature.shape[2] not in (1, 3, 4):
        raise UsageError(f"{column.name!r} of {where} is {feature}, but images must be uint8 with 1, 3 or 4 channels.")
    return column


def _texts(features: Mapping[str, Any], kinds: ModuleType) -> dict[str, Any]:
    """Selects the features that are text, nested as in the set."""
    texts = {name: feature for name, feature in features.items() if isinstance(feature, kinds.Text)}
    nested = {name: _texts(inner, kinds) for name, inner in features.items() if isinstance(inner, kinds.FeaturesDict)}
    return texts | {name: inner for name, inner in nested.items() if inner}


def _records(
    builder: Any, split: str, name: str, folder: str, decoders: dict[str, Any] | None
) -> Sequence[dict[str, Any]]:
    """Opens the examples; raises UsageError if they have no random access, or files are missing."""
    try:
        records = builder.as_data_source(split, decoders=decoders)
    except NotImplementedError as error:
        # `tfds build --overwrite` in the same folder fails in TFDS 4.9.10, so both ways out leave the folder alone.
        raise UsageError(
            f"tfds:{name} is prepared in {folder} as {builder.info.file_format.value}, which has no random access: "
            f"rename {builder.data_path} and run again with TensorFlow installed (pip install -r "
            f"requirements-prepare.txt), or run `tfds build {name} --file_format=array_record "
            "--data_dir=NEW_FOLDER` (which needs apache-beam and mlcroissant too) and set data.data_dir to "
            "NEW_FOLDER."
        ) from error
    for path in builder.info.splits[split].filepaths:
        if not path.exists():
            raise UsageError(f"tfds:{name} in {folder} is damaged: {path.name} is missing; prepare it again.")
    return records


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
    import requests

    missing = f"tfds:{name} is not prepared in {folder}"
    elsewhere = "or set data.data_dir or TFDS_DATA_DIR to a folder where it is prepared"
    if importlib.util.find_spec("tensorflow") is None:
        raise UsageError(
            f"{missing}, and preparing it needs TensorFlow: pip install -r requirements-prepare.txt, {elsewhere}."
        )
    for url in [] if builder.MANUAL_DOWNLOAD_INSTRUCTIONS else list(builder.url_infos or ())[:1]:
        try:  # without a network, TFDS itself would retry for minutes
            requests.head(url, timeout=10)
        except (requests.ConnectionError, requests.Timeout) as error:
            raise UsageError(
                f"{missing}, and the network is needed to download it but {url} cannot be reached: connect, "
                f"{elsewhere}."
            ) from error
    try:
        builder.download_and_prepare(file_format="array_record")
    # TFDS reports archives that must be fetched by hand with an AssertionError.
    except (AssertionError, OSError, ValueError) as error:
        raise UsageError(f"{missing}, and preparing it failed ({brief(error)}): fix that, {elsewhere}.") from error
