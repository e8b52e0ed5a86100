"""Kernels and computations for one kind of hardware: TPU, NVIDIA GPU, CPU.

    tpu_attention, tpu_attention_blocks, tpu_attention_plan, tpu_attention_kernel, relative_shift,
    hashed_dropout   attention in one Pallas kernel on a TPU
    cudnn    when cuDNN's fused attention is used on an NVIDIA GPU
    gpu      products, losses and norms on a GPU, and whether layers are unrolled there
    cpu      faster gradients, dropout bits and unrolled layers on a CPU
"""
