"""Build, check and time candidates in separate processes.

Names are imported lazily: the fork server and `records` load only the modules that they use.
"""

from felixlike._util.lazy import lazily

__getattr__, __dir__, __all__ = lazily(__name__)
