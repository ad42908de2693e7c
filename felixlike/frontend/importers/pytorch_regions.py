"""Let PyTorch run the operators of a model that TVM cannot import, among others that are compiled.

Input: the graph of an ExportedProgram. Output: the same graph, in which each region of such operators is one call. TVM
has no complex numbers, so operators that take or return them belong to regions too. Complex weights become real ones
with a last dimension of size 2, and so do complex values that pass from one region to another.

An operator that draws random numbers is a region by itself. Each such region has a result of the one before as a
further input, so that no pass reorders or merges them: they draw in the order of the graph.

A call has the region's operators as JSON text, which `runtime/pytorch_calls.py` reads:

    {"inputs": 1, "operators": [["_fft_r2c.default", [{"result": 0}, [1], 0, true], {}], …], "outputs": [{"result": 1}]}

Results are numbered from the inputs on; {"result": 3, "item": 0} is the first tensor that an operator returns.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from felixlike import _tvm
from felixlike._util.torch_compat import copy_state, is_operator, schema_of
from felixlike._util.wording import counted
from felixlike.errors import UnsupportedOperator
from felixlike.frontend.importers.constant_regions import fold
from felixlike.frontend.importers.dtypes import check_tensor
from felixlike.frontend.importers.known_sizes import size_of
from felixlike.frontend.importers.randomness import is_random, may_be_random
from felixlike.frontend.importers.slice_writes import join_writes
from felixlike.hardware import kind_of

PACKED = "felixlike.run_by_pytorch"
"""Name of the function in TVM's registry that runs a region."""

_CHECKS = "aten._linalg_check_errors.default"
"""Operator that raises an error for singular matrices and the like. It returns nothing."""

_REMEDY = "use other operators"


def run_by_pytorch(text: str, *inputs: Any) -> Any:
    """Stand for a region in a graph. It is never called.

    Args:
        text: The region's operators.
        inputs: Tensors and sizes.
    """
    raise NotImplementedError


def without_effects(program: Any) -> None:
    """Turn the checks of linear algebra from operators with effects into plain calls. Modifies the program.

    Programs with other effects are not changed.
    """
    graph, signature = program.graph, program.graph_signature
    effects = [node for node in graph.nodes if getattr(node.target, "__name__", "") == "with_effects"]
    if not effects or any(str(node.args[1]) != _CHECKS for node in effects):
        return
    for node in effects:
        token, check, *arguments = node.args
        with graph.inserting_before(node):
            graph.call_function(check, tuple(arguments), node.kwargs).meta["val"] = None
        for part in list(node.users):
            part.replace_all_uses_with(token)
            graph.erase_node(part)
        graph.erase_node(node)
    kept = [spec.kind.name != "TOKEN" for spec in signature.output_specs]
    output = graph.output_node()
    output.args = (tuple(value for value, keep in zip(output.args[0], kept, strict=True) if keep),)
    signature.output_specs[:] = [spec for spec, keep in zip(signature.output_specs, kept, strict=True) if keep]
    tokens = {spec.arg.name for spec in signature.input_specs if spec.kind.name == "TOKEN"}
    for node in [node for node in graph.nodes if node.op == "placeholder" and node.name in tokens]:
        graph.erase_node(node)
    signature.input_specs[:] = [spec for spec in signature.input_specs if spec.kind.name != "TOKEN"]


def outline(program: Any, known: set[str], where: str) -> None:
    """Replace the regions of operators that PyTorch must run by one call each. Modifies the program.

    What depends on weights alone is computed at once.

    Args:
        program: A functional ExportedProgram without effects.
        known: Names of the operators that can be imported.
        where: The model's name, for errors.

    Raises:
        UnsupportedOperator: There is nothing else to compile, a complex value is an output or is used by an operator
            that PyTorch's kernels do not compute, or an error would be raised for a result that is not used.
        InvalidModel: An input is complex.
    """
    graph = program.graph
    _check_inputs(program, where)
    _move_later(graph)
    join_writes(graph)
    chosen = fold(program, _chosen(graph, known))
    _check_complex(graph, chosen, where)
    wrapped = _with_real_constants(program)
    if not chosen:
        return
    _check_rest(graph, chosen, where)
    level, regions = _regions(graph, chosen)
    place = {node: (level[node], 0, index) for index, node in enumerate(graph.nodes)}
    drawn: list[Any] = []
    for region in regions:
        random = is_random(region[0])
        call = _as_call(graph, region, wrapped, where, drawn if random else None)
        if random:
            drawn = call[1:2]
        for added in call:
            place[added] = (level[region[0]], 1, place[region[0]][2])
    output = graph.output_node()
    for node in sorted((node for node in graph.nodes if node is not output), key=place.__getitem__):
        output.prepend(node)
    for spec, value in zip(program.graph_signature.output_specs, output.args[0], strict=True):
        if hasattr(value, "name"):
            spec.arg = type(spec.arg)(name=value.name)


_READS = ("view_as_real.default", "abs.default")
"""Operators that make real numbers of complex ones."""
_MOVES = ("transpose.int", "permute.default")
"""Operators that reorder dimensions, with the dimensions as their other arguments."""


def _move_later(graph: Any) -> None:
    """Reorder the dimensions of real numbers in place of those of the complex values they are made of.

    Compiled kernels transpose them, or read them as they are. In a region, they would be copied element by element.
    """
    for last in list(graph.nodes):
        node = last
        while _name(node) in _READS and _name(node.args[0]) in _MOVES and _is_complex(node.args[0]):
            move = node.args[0]
            source, *dims = move.args
            rank = source.meta["val"].dim()
            dims = [[dim % rank for dim in each] if isinstance(each, list) else each % rank for each in dims]
            if isinstance(dims[0], list) and "view_as_real" in _name(node):
                dims[0].append(rank)
            with graph.inserting_before(node):
                read = graph.call_function(node.target, (source,))
                moved = graph.call_function(move.target, (read, *dims))
            read.meta = {**node.meta, "val": node.target(source.meta["val"])}
            moved.meta = {**node.meta, "val": move.target(read.meta["val"], *dims)}
            node.replace_all_uses_with(moved)
            graph.erase_node(node)
            if not move.users:
                graph.erase_node(move)
            node = read


def _name(node: Any) -> str:
    """Return the name of the operator that a node calls, with its overload."""
    return str(getattr(node.target, "__name__", "")) if node.op == "call_function" else ""


def convert(node: Any, importer: Any) -> Any:
    """Convert a region to a call of the packed function.  Raises UnsupportedOperator for a size that is not known."""
    value = node.meta["val"]
    results = value if isinstance(value, tuple) else (value,)
    sizes = [[size_of(size, importer) for size in result.shape] for result in results]
    inputs = [_input(argument, importer) for argument in node.args[1:]]
    if any(size is None for shape in (*sizes, inputs) for size in shape):
        raise UnsupportedOperator(
            f"PyTorch runs {', '.join(_names(node.args[0]))}, with sizes that are not sums or products of the"
            " dynamic ones",
            remedy="optimize for fixed sizes",
        )
    types = [(shape, str(result.dtype).removeprefix("torch.")) for shape, result in zip(sizes, results, strict=True)]
    return importer.block_builder.emit(_call(node.args[0], inputs, types))


def pytorch_call(operators: Sequence[Any], inputs: Sequence[Any], results: Sequence[tuple[Sequence[Any], str]]) -> Any:
    """Return the Relax call of a region whose last operator has the only result.

    Args:
        operators: The region's operators as JSON data.
        inputs: Relax values.
        results: Sizes and dtype of each result.
    """
    last = {"result": len(inputs) + len(operators) - 1}
    return _call(json.dumps({"inputs": len(inputs), "operators": operators, "outputs": [last]}), inputs, results)


def _call(text: str, inputs: Sequence[Any], results: Sequence[tuple[Sequence[Any], str]]) -> Any:
    """Return the Relax call of a region.  results: sizes and dtype of each."""
    relax = _tvm.relax
    arguments = relax.Tuple([_tvm.ir.StringImm(text), *inputs])
    return relax.op.call_dps_packed(PACKED, arguments, [relax.TensorType(shape, dtype) for shape, dtype in results])


def check_target(module: Any, target: Any, where: str) -> None:
    """Raise UnsupportedOperator if a Relax module has regions that PyTorch runs, and the target is not the CPU."""
    names = () if kind_of(target).on_host else operators_in(module)
    if names:
        raise UnsupportedOperator(
            f"TVM cannot import {', '.join(names)}, which PyTorch can run in models for CPUs only",
            where=where,
            remedy=_REMEDY,
        )


def check_kernels(module: Any, where: str) -> None:
    """Raise UnsupportedOperator if a fused Relax module has regions that PyTorch runs, and no kernels besides."""
    names = operators_in(module)
    if names and not any(isinstance(function, _tvm.PrimFunc) for function in module.functions.values()):
        raise _all_by_pytorch(names, where)


def _all_by_pytorch(names: Iterable[str], where: str) -> UnsupportedOperator:
    """Return the error for a model of which PyTorch would run all operators."""
    return UnsupportedOperator(
        f"TVM cannot import {', '.join(names)}, and the model has no other operators",
        where=where,
        remedy="use the model as it is",
    )


def operators_in(module: Any) -> tuple[str, ...]:
    """Return the names of the operators that PyTorch runs in a Relax module, sorted."""
    relax = _tvm.relax
    names: set[str] = set()

    def visit(node: Any) -> None:
        called = node.args[0] if isinstance(node, relax.Call) and len(node.args) else None
        if isinstance(called, relax.ExternFunc) and str(called.global_symbol) == PACKED:
            names.update(_names(str(node.args[1].fields[0].value)))

    for function in module.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return tuple(sorted(names))


def draws_random_numbers(names: Iterable[str]) -> bool:
    """Return whether one of the operators that PyTorch runs in a model draws random numbers.  names: theirs."""
    return any(map(may_be_random, names))


def note_of(module: Any) -> str:
    """Return the report's remark on a Relax module with operators that PyTorch runs, empty without any."""
    names = operators_in(module)
    return f"PyTorch runs {counted(len(names), 'operator')} of the model: {', '.join(names)}." if names else ""


def _names(text: str) -> list[str]:
    """Return the names of a region's operators, without overloads and without views of complex numbers."""
    named = [str(name).partition(".")[0] for name, _, _ in json.loads(text)["operators"]]
    hidden = {"view_as_complex", "view_as_real", "resolve_conj"}
    return sorted({name for name in named if name not in hidden}) or sorted(set(named))


def _input(argument: Any, importer: Any) -> Any:
    """Return the Relax value of a tensor or size; None for a size that is not known."""
    import torch

    value = argument.meta["val"]
    return importer.env[argument] if isinstance(value, torch.Tensor) else size_of(value, importer)


def _chosen(graph: Any, known: set[str]) -> set[Any]:
    """Return the calls that PyTorch must run and can run. Assertions about complex dtypes, which hold, are removed."""
    chosen: set[Any] = set()
    for node in list(graph.nodes):
        if "_assert_tensor_metadata" in str(node.target) and any(map(_is_complex, node.all_input_nodes)):
            graph.erase_node(node)
        elif node.op == "call_function" and _is_for_pytorch(node, chosen, known):
            chosen.add(node)
    return chosen


def _is_for_pytorch(node: Any, chosen: set[Any], known: set[str]) -> bool:
    """Return whether a call is one that PyTorch must run and can run."""
    if node.target is operator.getitem:
        return node.args[0] in chosen
    if not is_operator(node.target) or not is_functional(node.target):
        return False
    return (
        node.target.__name__ not in known
        or is_random(node)
        or _has_indices(node)
        or _has_whole_exponents(node)
        or _is_complex(node)
        or any(map(_is_complex, node.all_input_nodes))
    )


def _has_indices(node: Any) -> bool:
    """Return whether a node is a max pooling whose indices are used, which TVM does not compute."""
    return "max_pool" in node.target.__name__ and any(
        user.target is operator.getitem and user.args[1] == 1 and user.users for user in node.users
    )


def _has_whole_exponents(node: Any) -> bool:
    """Return whether a node computes integer powers whose exponents are a tensor, which TVM refuses."""
    return node.target.__name__ in ("pow.Tensor_Tensor", "pow.Scalar") and not node.meta["val"].dtype.is_floating_point


def is_functional(overload: Any) -> bool:
    """Return whether an operator is one of PyTorch's own, changes no tensor, and has results of known sizes."""
    import torch

    schema = schema_of(overload)
    tags = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)
    if overload.namespace != "aten" or schema.is_mutable or any(tag in overload.tags for tag in tags):
        return False
    tensors = all(str(result.type) in ("Tensor", "List[Tensor]") for result in schema.returns)
    return str(overload) == _CHECKS or (bool(schema.returns) and tensors)


def _tensors(node: Any) -> Iterator[Any]:
    """Yield the tensors of a node's value."""
    import torch

    value = node.meta.get("val")
    for item in value if isinstance(value, tuple | list) else (value,):
        if isinstance(item, torch.Tensor):
            yield item


def _is_complex(node: Any) -> bool:
    """Return whether a node's value has complex numbers."""
    return any(tensor.is_complex() for tensor in _tensors(node))


def _check_inputs(program: Any, where: str) -> None:
    """Raise InvalidModel for a complex input."""
    inputs = set(program.graph_signature.user_inputs)
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in inputs and _is_complex(node):
            check_tensor(node.meta["val"], what=f"input {node.name!r}", where=where)


def _check_complex(graph: Any, chosen: set[Any], where: str) -> None:
    """Raise UnsupportedOperator for complex values outside of the regions."""
    for node in graph.nodes:
        if node.op == "placeholder" or node in chosen:
            continue
        for source in (node, *node.all_input_nodes):
            if _is_complex(source):
                dtype = str(next(_tensors(source)).dtype).removeprefix("torch.")
                user = "the model returns" if node.op == "output" else f"{node.target} has"
                raise UnsupportedOperator(
                    f"{user} the unsupported dtype {dtype}",
                    where=where,
                    remedy="return real tensors: torch.view_as_real(y)" if node.op == "output" else _REMEDY,
                )


def _check_rest(graph: Any, chosen: set[Any], where: str) -> None:
    """Raise UnsupportedOperator if PyTorch would run all operators, or raise an error for a result without use."""
    used: set[Any] = set(graph.output_node().all_input_nodes)
    for node in reversed(graph.nodes):
        if node in used:
            used.update(node.all_input_nodes)
    rest = [node for node in used if node.op == "call_function" and node not in chosen]
    if all(node.target is operator.getitem for node in rest):
        raise _all_by_pytorch(sorted({str(node.target) for node in chosen if is_operator(node.target)}), where)
    for node in chosen:
        if str(node.target) == _CHECKS and not used.intersection(node.args[0].all_input_nodes):
            raise UnsupportedOperator(
                f"TVM cannot import {node.args[1]}, whose result is not used but may be an error",
                where=where,
                remedy="remove it, or use its result",
            )


def _with_real_constants(program: Any) -> set[Any]:
    """Replace complex weights and constants by real tensors with a last dimension of 2. Return their nodes."""
    import torch

    nodes = [node for node in program.graph.nodes if node.op == "placeholder" and _is_complex(node)]
    if not nodes:
        return set()
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    copy_state(program)  # it is the user's
    of_value: dict[int, Any] = {}
    for node in nodes:
        node.meta["val"] = _real(node.meta["val"])
        for state in (program.state_dict, program.constants):
            value = state.get(specs[node.name].target)
            if value is not None:
                real = of_value.setdefault(id(value), _real(value.detach()))
                state[specs[node.name].target] = (
                    torch.nn.Parameter(real, requires_grad=False) if isinstance(value, torch.nn.Parameter) else real
                )
    return set(nodes)


def _real(tensor: Any) -> Any:
    """Return a complex tensor as a real one with a last dimension of 2."""
    import torch

    return torch.view_as_real(tensor.resolve_conj()).clone(memory_format=torch.contiguous_format)


def _regions(graph: Any, chosen: set[Any]) -> tuple[dict[Any, int], list[list[Any]]]:
    """Return the level of each node, and the regions of the chosen ones in an order in which they can be called.

    The level is the largest number of regions that are left on a path to the node. Chosen nodes that are connected and
    have one level are a region: a path between them that leaves the region would lead to another level. A random
    operator is left on each path to a later one, and on each path from and to other chosen nodes.
    """
    level: dict[Any, int] = {}
    region_of: dict[Any, list[Any]] = {}
    position = {node: index for index, node in enumerate(graph.nodes)}
    drawing: dict[Any, Any] = {}  # the random operator that a node calls or has a result of
    last: list[Any] = []
    for node in graph.nodes:
        sources = [*node.all_input_nodes]
        if node in chosen and node.target is operator.getitem and node.args[0] in drawing:
            drawing[node] = drawing[node.args[0]]
        elif node in chosen and is_random(node):
            drawing[node] = node
            sources += last
            last = [node]
        leaves = {s for s in sources if s in chosen and (node not in chosen or drawing.get(s) is not drawing.get(node))}
        level[node] = max((level[s] + (s in leaves) for s in sources), default=0)
        if node in chosen:
            joined = [s for s in sources if s in chosen and s not in leaves]
            near = {id(region_of[s]): region_of[s] for s in joined if level[s] == level[node]}
            merged = [*(member for region in near.values() for member in region), node]
            region_of.update(dict.fromkeys(merged, merged))
    regions = [sorted(region, key=position.__getitem__) for region in {id(r): r for r in region_of.values()}.values()]
    return level, sorted(regions, key=lambda region: (level[region[0]], position[region[0]]))


class _Listing:
    """The operators of a region as JSON data, and the reference to the result of each node."""

    def __init__(self, inputs: Sequence[Any], wrapped: set[Any], where: str) -> None:
        """Begin with the inputs. Those in `wrapped` stand for complex numbers."""
        self._count, self._where = len(inputs), where
        self.operators: list[Any] = []
        self.results: dict[Any, dict[str, int]] = {}
        for index, source in enumerate(inputs):
            value = {"result": index}
            self.results[source] = self.call("view_as_complex.default", [value], {}) if source in wrapped else value

    def call(self, name: str, arguments: Any, named: Any) -> dict[str, int]:
        """Append an operator and return the reference to its result."""
        self.operators.append([name, arguments, named])
        return {"result": self._count + len(self.operators) - 1}

    def add(self, node: Any) -> None:
        """Append a node."""
        if node.target is operator.getitem:
            self.results[node] = {**self.results[node.args[0]], "item": node.args[1]}
            return
        arguments, named = (_plain(value, self.results, node, self._where) for value in (node.args, node.kwargs))
        self.results[node] = self.call(str(node.target).removeprefix("aten."), arguments, named)

    def output(self, node: Any) -> dict[str, int]:
        """Return the reference to a node's result as a real tensor."""
        value = self.results[node]
        if not _is_complex(node):
            return value
        return self.call("view_as_real.default", [self.call("resolve_conj.default", [value], {})], {})


def _as_call(
    graph: Any, region: Sequence[Any], wrapped: set[Any], where: str, drawn: Sequence[Any] | None
) -> list[Any]:
    """Replace a region by its call, and return the new nodes.

    wrapped: The nodes whose real values stand for complex ones. New ones are added.  drawn: A result of the random
    region before, if the region is a random one.
    """
    members = set(region)
    inputs = list(dict.fromkeys(s for node in region for s in node.all_input_nodes if s not in members))
    outputs = [node for node in region if any(user not in members for user in node.users)]
    if drawn is not None:
        inputs = list(dict.fromkeys([*inputs, *drawn]))
        outputs = outputs or list(region[:1])
    listing = _Listing(inputs, wrapped, where)
    for node in region:
        listing.add(node)
    references = [listing.output(node) for node in outputs]
    text = json.dumps({"inputs": len(inputs), "operators": listing.operators, "outputs": references})
    added = []
    if outputs:
        with graph.inserting_after(region[-1]):
            call = graph.call_function(run_by_pytorch, (text, *inputs))
        call.meta["val"] = tuple(_value_of(node, where) for node in outputs)
        added = [call, *(_item(graph, call, index, node, members) for index, node in enumerate(outputs))]
        wrapped.update(item for item, node in zip(added[1:], outputs, strict=True) if _is_complex(node))
    for node in reversed(region):
        graph.erase_node(node)
    return added


def _value_of(node: Any, where: str) -> Any:
    """Return the tensor that a region returns for a node.  Raises UnsupportedOperator for other results."""
    import torch

    value = node.meta["val"]
    if not isinstance(value, torch.Tensor):
        raise UnsupportedOperator(f"TVM cannot import {node.target}", where=where, remedy=_REMEDY)
    return _real(value) if value.is_complex() else value


def _item(graph: Any, call: Any, index: int, node: Any, members: set[Any]) -> Any:
    """Insert an element of a call's result, and make it replace a node outside of the region."""
    with graph.inserting_after(call):
        item = graph.call_function(operator.getitem, (call, index))
    item.meta["val"] = call.meta["val"][index]
    node.replace_all_uses_with(item, delete_user_cb=lambda user: user not in members)
    return item


def _plain(value: Any, results: dict[Any, dict[str, int]], node: Any, where: str) -> Any:
    """Return an argument as JSON data.  Raises UnsupportedOperator for a value that JSON data cannot express."""
    import torch

    if isinstance(value, torch.fx.Node):
        return results[value]
    if isinstance(value, tuple | list):
        return [_plain(item, results, node, where) for item in value]
    if isinstance(value, dict):
        return {str(name): _plain(item, results, node, where) for name, item in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    for kind in ("dtype", "layout", "memory_format"):
        if isinstance(value, getattr(torch, kind)):
            return {kind: str(value).removeprefix("torch.")}
    if isinstance(value, torch.device) and value.type == "cpu":
        return {"device": "cpu"}
    raise UnsupportedOperator(f"TVM cannot import {node.target} with the argument {value}", where=where, remedy=_REMEDY)
