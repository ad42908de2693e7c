"""Compile operators and models whose sizes are known only at the call: uKernels, their combination, and dispatch by
size.

Follows FTuner (Mu et al., A fast dynamic shape tensors program auto-tuner for deep learning compilers) and DietCode
(Zheng et al., Automatic optimization for dynamic tensor programs, MLSys 2022). Docstrings use their notation.
"""

from felixlike.dynamic.dims import Dim, check_dims
from felixlike.dynamic.joint import Instances, instances
from felixlike.dynamic.kernel import DynamicKernel
from felixlike.dynamic.plan import Plan, compile, plan_operator

__all__ = ["Dim", "DynamicKernel", "Instances", "Plan", "check_dims", "compile", "instances", "plan_operator"]
