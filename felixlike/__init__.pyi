from felixlike import search as search
from felixlike import tc as tc
from felixlike._version import __version__ as __version__
from felixlike.api import Optimized as Optimized
from felixlike.api import extract_tasks as extract_tasks
from felixlike.api import load as load
from felixlike.api import optimize as optimize
from felixlike.dynamic import Dim as Dim
from felixlike.dynamic import instances as instances
from felixlike.errors import FelixlikeError as FelixlikeError
from felixlike.frontend import Task as Task
from felixlike.hardware import Device as Device
from felixlike.hardware import Target as Target

__all__: list[str]
