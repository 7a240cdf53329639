"""Triton kernels run in the interpreter: this folder needs a pytest process of its own.

Triton reads the variable when a kernel is decorated, so it is set before any is imported.
"""

import os

os.environ["TRITON_INTERPRET"] = "1"
