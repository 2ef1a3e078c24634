"""Operations on models that have weights: layers get other mechanisms, and kernels small additions."""
