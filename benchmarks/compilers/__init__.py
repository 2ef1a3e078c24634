"""Kernels through the real compilers of TPUs and GPUs, without a device."""
