"""Hosseini Tables 1 and 7: a reduced ViT-B/16 on ImageNet-1k.

    python -m train.main --config=configs/vit_imagenet.py:super --config.data.data_dir=DIR

The argument is an attention mechanism, `dot_product` by default. From the paper: 8 layers, width 768, 12 heads,
112x112 images, patch 8 (ℓ = 196, so no class token). Ours: MLP 3072 (as ViT-B), augmentation, AdamW settings,
label smoothing, length; the public validation set serves as test, the last 1 % of train as validation.
"""

from configs import defaults

NORMALISE = "normalise(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))"


def get_config(attention: str = "dot_product"):
    """ViT of 8 blocks, width 768, on 196 patches of 8x8 pixels."""
    config = defaults.image_classification()
    config.model.update(attention=attention, depth=8, width=768, heads=12, mlp=3072, patch=8, remat="dots")
    config.data.update(
        source="tfds:imagenet2012",
        classes=1000,
        image_shape="0x0x3",
        train_split="train[:99%]",
        validation_split="train[99%:]",
        test_split="validation",
        batch_size=1024,
        eval_batch_size=1024,
        train_transforms=f"random_resized_crop(size=112)|flip|{NORMALISE}",
        eval_transforms=f"resize(size=128, keep_aspect=True)|center_crop(size=112)|{NORMALISE}",
        mixup=0.2,
        workers=8,
    )
    config.train.update(length="90 epochs", precision="bfloat16", label_smoothing=0.1, checkpoint_every="1 epoch")
    config.optimizer.update(warmup="5 epochs", weight_decay=0.1)
    return config
