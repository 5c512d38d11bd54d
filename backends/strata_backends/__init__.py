"""Devices. The only Python package, with strata_kernels, that may name a vendor."""
