"""Compile operators and models whose sizes are known only at the call: uKernels, their combination, and dispatch by
size.

Follows FTuner (Mu et al., A fast dynamic shape tensors program auto-tuner for deep learning compilers) and DietCode
(Zheng et al., Automatic optimization for dynamic tensor programs, MLSys 2022). Docstrings use their notation.
"""

from felixlike.dynamic.crosspick import Stride
from felixlike.dynamic.dims import Dim, check_dims
from felixlike.dynamic.fitting import fitted_sia
from felixlike.dynamic.joint import Instances, instances
from felixlike.dynamic.kernel import DynamicKernel
from felixlike.dynamic.plan import Plan, compile, plan_operator
from felixlike.dynamic.planner import PLANNERS, DietCode, FTuner, Planner, Timed, make_planner
from felixlike.dynamic.sia import Sia

__all__ = [
    "PLANNERS",
    "DietCode",
    "Dim",
    "DynamicKernel",
    "FTuner",
    "Instances",
    "Plan",
    "Planner",
    "Sia",
    "Stride",
    "Timed",
    "check_dims",
    "compile",
    "fitted_sia",
    "instances",
    "make_planner",
    "plan_operator",
]
