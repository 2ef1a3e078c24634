"""Images of TensorFlow Datasets: read without TensorFlow, prepared with it; every obstacle said in one sentence."""

import dataclasses
import difflib
import importlib.util
import io
import os
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
from PIL import Image

from attention.errors import UsageError, unknown

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


@dataclasses.dataclass(frozen=True)
class TfdsRecords(Sequence):
    """Records of a TFDS data source as `{'image': uint8 (H, W, C), 'label': int}`.

    The images are decoded here, by Pillow: TFDS would use OpenCV where it happens to be installed, whose JPEG
    pixels differ.
    """

    encoded: Sequence[dict[str, Any]]
    image_key: str
    label_key: str
    mode: str

    def __len__(self) -> int:
        return len(self.encoded)

    def __getitem__(self, index: int) -> dict[str, Any]:
        record = self.encoded[index]
        image = Image.open(io.BytesIO(record[self.image_key]))
        pixels = np.asarray(image if image.mode == self.mode else image.convert(self.mode))
        return {"image": pixels.reshape(*pixels.shape[:2], -1), "label": int(record[self.label_key])}


def read(
    name: str, split: str, data_dir: str, image_key: str, label_key: str
) -> tuple[TfdsRecords, int, tuple[int, int, int]]:
    """Opens a whole split, preparing the set first if need be and possible.

    Args:
      name: As TFDS writes it: `cifar100`, `name/config`, `name:1.2.3`.
      split: A plain name, no slice.
      data_dir: '' is the environment's TFDS_DATA_DIR, else TFDS's own default.
      image_key: The feature that holds the image.
      label_key: The feature that holds the label.

    Returns:
      The records, the number of classes, and the image shape with 0 for sizes that vary.

    Raises:
      UsageError: the set is unknown, not prepared and cannot be, not readable, or has no such split or feature.
    """
    tfds = _tfds()
    folder = os.path.expanduser(data_dir or os.environ.get("TFDS_DATA_DIR") or tfds.core.constants.DATA_DIR)
    builder = _builder(tfds, name, folder)
    if not (builder.data_path / tfds.core.constants.DATASET_INFO_FILENAME).exists():
        _prepare(builder, name, folder)
    if split not in builder.info.splits:
        raise unknown(f"split of tfds:{name}", split, builder.info.splits)
    classes, shape = _features(tfds, builder.info.features, name, image_key, label_key)
    encoded = _encoded(tfds, builder, name, split, folder, image_key)
    return TfdsRecords(encoded, image_key, label_key, _MODES[shape[2]]), classes, shape


def _tfds() -> ModuleType:
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise UsageError(f"TFDS data need tensorflow-datasets ({error}): pip install -r requirements.txt.") from error
    return tfds


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
            f"Cannot open tfds:{name} in {folder}: {_brief(error)}; "
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
        raise UsageError(f"{missing}, and preparing it failed ({_brief(error)}): mend that, {elsewhere}.") from error


def _check_network(builder: Any, message: str) -> None:
    """TFDS itself retries for minutes before it says that there is no network."""
    import requests

    urls = [] if builder.MANUAL_DOWNLOAD_INSTRUCTIONS else list(builder.url_infos or ())
    for url in urls[:1]:
        try:
            requests.head(url, timeout=10)
        except (requests.ConnectionError, requests.Timeout) as error:
            raise UsageError(message.format(f"{url} cannot be reached")) from error


def _features(
    tfds: ModuleType, features: Any, dataset: str, image_key: str, label_key: str
) -> tuple[int, tuple[int, int, int]]:
    for field, key, kind in (
        ("data.image_key", image_key, tfds.features.Image),
        ("data.label_key", label_key, tfds.features.ClassLabel),
    ):
        fitting = [name for name, feature in features.items() if isinstance(feature, kind)]
        if key not in fitting:
            raise unknown(f"{field} for tfds:{dataset}", key, fitting)
    image = features[image_key]
    shape = tuple(size or 0 for size in image.shape)
    if np.dtype(image.np_dtype) != np.uint8 or shape[2] not in _MODES:
        raise UsageError(
            f"{image_key!r} of tfds:{dataset} is {image}, but images must be uint8 with 1, 3 or 4 channels."
        )
    return features[label_key].num_classes, shape


def _encoded(tfds: ModuleType, builder: Any, name: str, split: str, folder: str, image_key: str) -> Sequence[Any]:
    try:
        encoded = builder.as_data_source(split, decoders={image_key: tfds.decode.SkipDecoding()})
    except NotImplementedError as error:
        # `tfds build --overwrite` in the same folder fails in TFDS 4.9.10, so both ways out leave the folder alone.
        raise UsageError(
            f"tfds:{name} is prepared in {folder} as {builder.info.file_format.value}, which has no random access: "
            f"rename {builder.data_path} and run again with TensorFlow installed (pip install -r "
            f"requirements-prepare.txt), or run `tfds build {name} --file_format=array_record --data_dir=NEW_FOLDER` "
            "(which needs apache-beam and mlcroissant too) and set data.data_dir to NEW_FOLDER."
        ) from error
    for path in builder.info.splits[split].filepaths:
        if not path.exists():
            raise UsageError(f"tfds:{name} in {folder} is damaged: {path.name} is missing; prepare it again.")
    return encoded


def _brief(error: Exception) -> str:
    """The first line of a library's message, to stand inside a sentence."""
    return str(error).strip().partition("\n")[0].rstrip(".:")
