"""`keep` in a spec string of attention: the layer's mechanism in the model whose weights a run starts from."""

from ml_collections import ConfigDict

from attention.errors import UsageError
from models.files import at_home, read_json
from models.published import pretrained
from models.surgery.exchange import keeps, kept
from models.transformer import TransformerConfig
from train import tasks


def keep(config: ConfigDict) -> None:
    """Puts the source's mechanisms in the place of each `keep` in the spec strings of a whole config's model.

    The source is `train.init_from`, or else `model.pretrained`.
    """
    model, task = config.get("model"), tasks.TASKS.get(_text(config, "task"))
    kind = task.model_types.get(_text(model, "name")) if task and isinstance(model, ConfigDict) else None
    for field, depth in kind.STACKS.items() if kind and issubclass(kind, TransformerConfig) else ():
        spec = model.get(field)
        if isinstance(spec, str) and keeps(spec):
            model[field] = kept(spec, _source(config, field), model[depth])


def _text(section: ConfigDict, field: str) -> str:
    value = section.get(field)
    return value if isinstance(value, str) else ""


def _source(config: ConfigDict, field: str) -> str:
    if directory := config.train.init_from:
        model = read_json(at_home(directory) / "config.json", "set train.init_from to a run's folder").get("model")
        spec = model.get(field) if isinstance(model, dict) else None
        if not isinstance(spec, str):
            raise UsageError(f"train.init_from={directory!r} is a run without model.{field}; name its mechanisms.")
        return spec
    if source := config.model.get("pretrained"):
        return pretrained.describe(source).fields.get(field, "dot_product")
    raise UsageError(
        f"model.{field}={config.model[field]!r} keeps the mechanisms of a source of weights; set model.pretrained or "
        "train.init_from, or name a mechanism."
    )
