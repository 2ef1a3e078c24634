"""Changes to models with weights: layers get other mechanisms, and kernels small additions."""
