"""Device functions and tilings that several kernels share."""
