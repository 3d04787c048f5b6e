"""Training on a GPU: CUDA graphs and Triton kernels. Imported only where they are used."""
