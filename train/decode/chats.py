"""Chat templates: how conversations with a published model are written as text, as `transformers` does it."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import ModuleType
from typing import Any

from attention.errors import UsageError
from models.files import read_json, read_text
from models.published import hugging_face

CONFIG = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"


def conversation(source: str, turns: Sequence[Mapping[str, str]]) -> tuple[str, str]:
    """Writes a conversation up to the model's answer, and the text that ends the answer.

    Each turn has a `role`, such as `user`, and its `content`.
    """
    try:
        import jinja2.sandbox
    except ImportError as error:
        raise UsageError("Chat templates need the package jinja2: pip install jinja2.") from error
    settings = read_json(hugging_face.find(source, CONFIG), "give another model")
    special = {name: _text(settings[name]) for name in ("bos_token", "eos_token") if settings.get(name)}
    template = _template(source, settings)
    try:
        made = _environment(jinja2).from_string(template)
        text = made.render(messages=list(turns), add_generation_prompt=True, **special)
    except (jinja2.TemplateError, TypeError, ValueError) as error:
        raise UsageError(f"The chat template of {source} cannot write this conversation: {error}.") from error
    return text, special.get("eos_token", "")


def _template(source: str, settings: Mapping[str, Any]) -> str:
    """Reads the template from its own file or from `tokenizer_config.json`."""
    path = hugging_face.find(source, TEMPLATE, CONFIG)
    template = read_text(path, "give another model") if path.name == TEMPLATE else settings.get("chat_template")
    if isinstance(template, list):  # several, with names
        template = next((one.get("template") for one in template if one.get("name") == "default"), None)
    if not isinstance(template, str):
        raise UsageError(f"{source} has no chat template; leave out --chat, or give a model that was trained to chat.")
    return template


def _text(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token)


def _environment(jinja2: ModuleType) -> Any:
    """Makes the environment in which `transformers` renders templates: sandboxed, with functions of its own."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment.filters["tojson"] = lambda value, **options: json.dumps(value, **{"ensure_ascii": False} | options)
    environment.globals |= {"raise_exception": refuse, "strftime_now": lambda text: datetime.now().strftime(text)}
    return environment
