"""What the real compilers of TPUs and GPUs say of kernels, without a device."""
