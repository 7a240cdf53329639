"""Keeps transformers silent and on one thread while it loads a model."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging as transformers_logging

# Without it transformers copies weights on a thread pool; a memory owner forks afterwards.
_SYNCHRONOUS = "HF_DEACTIVATE_ASYNC_LOAD"


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Disable progress bars, warnings (we raise what they would say) and loader threads.

    The settings belong to the process; they are restored at the end.
    """
    shown = transformers_logging.is_progress_bar_enabled()
    verbosity = transformers_logging.get_verbosity()
    threads = os.environ.get(_SYNCHRONOUS)
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    os.environ[_SYNCHRONOUS] = "1"
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if shown:
            transformers_logging.enable_progress_bar()
        if threads is None:
            del os.environ[_SYNCHRONOUS]
        else:
            os.environ[_SYNCHRONOUS] = threads
