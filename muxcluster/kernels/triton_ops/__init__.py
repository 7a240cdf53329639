"""The Triton kernels: one file each, named like the public function in `kernels` it stands for."""
