"""Our ViT against transformers': the same logits of images from the same weights, in and out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import UsageError
from models.published import pretrained
from models.vit import ViTConfig
from tests.parity.close import assert_close

WHY = "parity needs PyTorch and transformers: pip install -r requirements-parity.txt"
torch = pytest.importorskip("torch", reason=WHY)
transformers = pytest.importorskip("transformers", reason=WHY)

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
SIZES |= {"image_size": 12, "patch_size": 4, "num_labels": 5}
IMAGES = np.random.default_rng(0).normal(size=(3, 12, 12, 3)).astype(np.float32)


def make(folder, **changes):
    torch.manual_seed(0)
    model = transformers.ViTForImageClassification(transformers.ViTConfig(**SIZES | changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return model


def logits_of(model, images=IMAGES):
    with torch.no_grad():
        return model(torch.tensor(images.transpose(0, 3, 1, 2))).logits.numpy()


def ours(folder, images=IMAGES, classes=5):
    config = ViTConfig(**pretrained.describe(str(folder)).fields)
    model = config.build(images.shape[1:], classes)
    params, report = pretrained.load(
        str(folder), config, model.init(jax.random.key(0), jnp.asarray(images[:1]))["params"]
    )
    return model, {"params": params}, report


@pytest.mark.parametrize("channels", [3, 1])
def test_logits_are_equal_and_an_export_loads(tmp_path, channels):
    theirs, images = make(tmp_path / "theirs", num_channels=channels), IMAGES[..., :channels]
    model, params, report = ours(tmp_path / "theirs", images)
    assert (report.new, report.skipped, report.cut) == ((), (), ())
    expected = logits_of(theirs, images)
    assert_close(model.apply(params, jnp.asarray(images)), expected, "ViT")
    pretrained.export(str(tmp_path / "ours"), model.config, params["params"])
    again, told = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert {key: list(value) for key, value in told.items() if value} == {}
    np.testing.assert_allclose(logits_of(again.eval(), images), expected, atol=1e-6)


def test_other_classes_get_a_head_of_their_own(tmp_path):
    theirs = make(tmp_path)
    model, params, report = ours(tmp_path, classes=7)
    assert report.new == ("head/bias", "head/kernel")
    assert report.skipped == ("classifier.bias", "classifier.weight")
    assert model.apply(params, jnp.asarray(IMAGES)).shape == (3, 7)
    theirs.vit.save_pretrained(tmp_path / "body")  # with the pooler of transformers, which classification lacks
    _, params, report = ours(tmp_path / "body")
    assert report.new == ("head/bias", "head/kernel")
    np.testing.assert_array_equal(params["params"]["class_token"][0, 0], theirs.vit.embeddings.cls_token[0, 0].detach())


def test_what_our_vit_has_not_is_refused(tmp_path):
    make(tmp_path / "vit")
    with pytest.raises(UsageError, match="the number of tokens is 5 but there 10"):
        ours(tmp_path / "vit", IMAGES[:, :8, :8])
    transformers.DeiTConfig().save_pretrained(tmp_path / "deit")
    with pytest.raises(UsageError, match="of type 'deit', which cannot be loaded: its second token, of distillation"):
        pretrained.describe(str(tmp_path / "deit"))
    make(tmp_path / "biases", qkv_bias=False)
    with pytest.raises(UsageError, match="qkv_bias=False; only True can be loaded"):
        pretrained.describe(str(tmp_path / "biases"))
