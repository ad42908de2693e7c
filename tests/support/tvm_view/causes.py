"""Why an entry of `tvm_view` is NaN: behaviour of TVM that is not modelled."""

from enum import StrEnum


class Cause(StrEnum):
    """A cause of NaN entries."""

    CONDITIONS = "TVM's simplifier writes conditions anew for each tile"
    REMAINDERS = "TVM's simplifier may settle a condition on a remainder for some tiles"
    WORDS = "TVM may write an index in several ways: of copies that threads share unevenly, of reshapes in tiles"
    GROUPS = (
        "TVM allocates more than is used of groups that threads share unevenly, and of windows, where they begin"
        " anywhere"
    )
    GUARDS = (
        "TVM places a guarded buffer relative to where the guard begins, and leaves dimensions whole for some tiles"
    )
    SETTLED = "TVM writes the index that is left where a condition leaves one element"
    BEFORE = "bytes between uses, after a store of which one of these is true"
    ALIKE = "buffers alike in lines, bytes and name: TVM's sorting is not stable"
    LOADED = "what TVM makes of an index that is loaded is not modelled"
